"""Switches of the documented door that are read from the environment, whenever they are asked for."""

from __future__ import annotations

import os

WRAP_LAYER = ("PADIFF_SIKP_WRAP_LAYER", "PADIFF_SKIP_WRAP_LAYER")
"""As documented, and as it should be spelled."""


def skips_wrap_layers() -> bool:
    """Whether layers that have no parameter, neither themselves nor inside them, are left out."""
    return any(os.environ.get(name, "FALSE").upper() == "TRUE" for name in WRAP_LAYER)
