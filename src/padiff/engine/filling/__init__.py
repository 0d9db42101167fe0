"""Where raw's tensors come from: the plan, choices that names leave open, and what raw's first run says of both."""
