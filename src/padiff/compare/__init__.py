"""Two tensors in, numbers and a verdict out."""
