"""Whether a dtype holds every value of another."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from padiff.records import Array


def loses(source: str, target: str, values: Callable[[], Array]) -> bool:
    """True when something is lost on the way: for floats by the dtypes alone, for integers by their values."""
    if not narrows(source, target):
        return False
    if _float_info(source) is not None or _integer_info(source) is None:
        return True
    whole, real = _integer_info(target), _float_info(target)
    if whole is not None:
        least, most = int(whole.min), int(whole.max)
    elif real is not None:  # positions, say, in a model that was cast as a whole
        most = 2 ** min(real.nmant + 1, real.maxexp)
        least = -most
    else:
        return True
    array = values()
    return bool(array.size and (int(array.min()) < least or int(array.max()) > most))


def narrows(source: str, target: str) -> bool:
    """True when values of ``source`` can lose something in ``target``."""
    if source == target:
        return False
    from_info, to_info = _float_info(source), _float_info(target)
    if from_info is not None and to_info is not None:
        return bool(
            to_info.nmant < from_info.nmant or to_info.maxexp < from_info.maxexp or to_info.minexp > from_info.minexp
        )
    if to_info is not None:
        whole = _integer_info(source)
        digits = 1 if source == "bool" else int(whole.max).bit_length() if whole is not None else None
        return digits is None or digits > to_info.nmant + 1 or digits > to_info.maxexp
    try:
        return not np.can_cast(np.dtype(source), np.dtype(target), casting="safe")
    except TypeError:
        return True


def _float_info(name: str) -> ml_dtypes.finfo | None:
    if name.startswith("complex"):  # finfo speaks of one of its two numbers
        return None
    try:
        return ml_dtypes.finfo(name)
    except (ValueError, TypeError):
        return None


def _integer_info(name: str) -> np.iinfo | None:
    try:
        return np.iinfo(name)
    except (ValueError, TypeError):
        return None
