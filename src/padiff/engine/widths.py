"""Models that compute in different dtypes on purpose: which is the narrower one, and what it means for a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from padiff.compare.tolerance import spacing
from padiff.engine.job import Job
from padiff.frameworks.tree import LiveTree, main_dtype
from padiff.records import Tolerance


def with_width(tolerance: Tolerance, base: LiveTree, raw: LiveTree) -> Tolerance:
    """Models whose parameters have, for the most part, different floating dtypes are meant to: the narrower counts.

    A few tensors in another dtype are a difference like any other."""
    dtypes = main_dtype(base), main_dtype(raw)
    differ = None not in dtypes and dtypes[0] != dtypes[1]
    products = [product_dtype(live) for live in (base, raw)]
    return _narrowed(tolerance, (*products, *dtypes) if differ else products)


def product_dtype(live: LiveTree) -> str | None:
    """The narrower format in which a model's products may be made where it lies."""
    ask: Callable[[Any], str | None] | None = getattr(live.adapter, "product_dtype", None)
    return None if ask is None else ask(live.model)


def with_widths(job: Job) -> Job:
    """The job with what its models' dtypes say."""
    return replace(job, tolerance=with_width(job.tolerance, job.base, job.raw))


def narrowed(job: Job, dtypes: Iterable[str | None]) -> Job:
    """The job with a tolerance that knows of narrower dtypes than it did; the same where they are not narrower."""
    tolerance = _narrowed(job.tolerance, dtypes)
    return job if tolerance is job.tolerance else replace(job, tolerance=tolerance)


def _narrowed(tolerance: Tolerance, dtypes: Iterable[str | None]) -> Tolerance:
    if tolerance.mode != "auto" and not (tolerance.rtol or tolerance.atol):  # equal to the bit, or not
        return tolerance
    narrow = max((spacing(dtype) for dtype in dtypes if dtype is not None), default=0.0)
    return tolerance if narrow <= tolerance.narrow else replace(tolerance, narrow=narrow)
