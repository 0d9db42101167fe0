"""Two tensors in, numbers and a verdict out."""

from padiff.compare.arrays import compare_arrays, missing
from padiff.compare.tolerance import as_tolerance

__all__ = ["as_tolerance", "compare_arrays", "missing"]
