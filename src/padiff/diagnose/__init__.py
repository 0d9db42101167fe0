"""From comparisons to the divergence: where it starts."""

from padiff.diagnose.divergence import find_divergence as find_divergence
