"""What an output is followed back along."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from padiff.records.values import Array


@dataclass(frozen=True)
class Direction:
    """A number for every element of a tensor: some that were drawn, over and over until there are enough."""

    drawn: Array
    shape: tuple[int, ...]

    @functools.cached_property
    def spread(self) -> Array:
        """All of them. On an accelerator they are spread there: of a large output only these few are uploaded."""
        found: Array = np.resize(self.drawn, self.shape)
        return found
