"""Whether a dtype holds every value of another."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def narrows(source: str, target: str) -> bool:
    """True when values of ``source`` can lose something in ``target``."""
    if source == target:
        return False
    from_info, to_info = _float_info(source), _float_info(target)
    if from_info is not None and to_info is not None:
        return bool(
            to_info.nmant < from_info.nmant or to_info.maxexp < from_info.maxexp or to_info.minexp > from_info.minexp
        )
    if from_info is not None or to_info is not None:
        return True
    try:
        return not np.can_cast(np.dtype(source), np.dtype(target), casting="safe")
    except TypeError:
        return True


def _float_info(name: str) -> ml_dtypes.finfo | None:
    try:
        return ml_dtypes.finfo(name)
    except (ValueError, TypeError):
        return None
