"""From comparisons to the divergence: where it starts."""

from padiff.diagnose.divergence import find_divergence as find_divergence
from padiff.diagnose.divergence import given_otherwise as given_otherwise
from padiff.diagnose.faults import divergences_of as divergences_of
