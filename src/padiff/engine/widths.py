"""Models that compute in different dtypes on purpose: which is the narrower one, and what it means for a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from padiff.compare.tolerance import spacing
from padiff.engine.job import Job
from padiff.frameworks.tree import main_dtype


def with_widths(job: Job) -> Job:
    """Models whose parameters have, for the most part, different floating dtypes are meant to: the narrower counts.

    A few tensors in another dtype are a difference like any other."""
    base, raw = main_dtype(job.base), main_dtype(job.raw)
    return job if base is None or raw is None or base == raw else narrowed(job, (base, raw))


def narrowed(job: Job, dtypes: Iterable[str | None]) -> Job:
    """The job with a tolerance that knows of narrower dtypes than it did; the same where they are not narrower."""
    if job.tolerance.mode != "auto" and not (job.tolerance.rtol or job.tolerance.atol):  # equal to the bit, or not
        return job
    narrow = max((spacing(dtype) for dtype in dtypes if dtype is not None), default=0.0)
    if narrow <= job.tolerance.narrow:
        return job
    return replace(job, tolerance=replace(job.tolerance, narrow=narrow))
