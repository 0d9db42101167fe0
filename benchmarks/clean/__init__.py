"""Pairs of models that compute the same, in many states: how often ``padiff.compare`` says that they don't."""
