"""Models that compute in different dtypes on purpose: which is the narrower one, and what it means for a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from padiff.compare.leaning import FEWEST_DIGITS
from padiff.compare.tolerance import spacing
from padiff.engine.job import Job
from padiff.frameworks.lookup import codes_of, has_code
from padiff.frameworks.tree import LiveTree, main_dtype
from padiff.records import Comparison, StepComparison, Tolerance

PRODUCTS = ("linear", "bilinear", "conv", "attention", "transformer", "lstm", "gru", "rnn")
"""How the names of layers begin that multiply matrices."""
_AUTOCAST = re.compile(r"(?!is_|get_|set_|clear_)\w*auto_?cast")
FURTHEST = 16.0
"""Spacings of a format; what its products make, and a norm or a softmax of that, lies nearer."""


def with_width(tolerance: Tolerance, base: LiveTree, raw: LiveTree) -> Tolerance:
    """Models whose parameters have, for the most part, different floating dtypes are meant to: the narrower counts.

    A few tensors in another dtype are a difference like any other."""
    dtypes = main_dtype(base), main_dtype(raw)
    return tolerance if None in dtypes or dtypes[0] == dtypes[1] else _narrowed(tolerance, dtypes)


def few_digits(job: Job) -> float:
    """The spacing of the dtype in which both models keep their parameters, where it has few digits; else 0."""
    dtypes = main_dtype(job.base), main_dtype(job.raw)
    own = 0.0 if dtypes[0] is None or dtypes[0] != dtypes[1] else spacing(dtypes[0])
    return own if own >= FEWEST_DIGITS else 0.0


def product_dtypes(job: Job, done: StepComparison) -> list[str | None]:
    """The formats in which both models' products may be made where they lie, where a product is the first that differs.

    Most often both take the same kernels, and what differs first elsewhere is no matter of products."""
    first = next((one for one in done.comparisons if not one.agrees), None)
    if first is None or job.tolerance.mode != "auto":
        return []
    layer = next((node.layer for node in job.raw.tree.nodes if node.path == first.raw_path), None)
    if layer is None or not layer.startswith(PRODUCTS):
        return []
    asked = [getattr(live.adapter, "product_dtype", None) for live in (job.base, job.raw)]
    found = [None if ask is None else ask(live.model) for ask, live in zip(asked, (job.base, job.raw), strict=True)]
    return [dtype if dtype is not None and _explained(first, dtype) else None for dtype in found]


def _explained(first: Comparison, dtype: str) -> bool:
    """Whether products in a format may bring the first tensor that differs so far."""
    numbers = first.outcome.numbers
    return numbers is not None and numbers.rmse <= FURTHEST * spacing(dtype) * numbers.base_rms


def with_widths(job: Job) -> Job:
    """The job with what its models' dtypes say."""
    return replace(job, tolerance=with_width(job.tolerance, job.base, job.raw))


def under_autocast(job: Job) -> Job:
    """The job with the dtypes that its frameworks are told to compute in here, whatever models say themselves."""
    asked = [getattr(live.adapter, "autocast_dtype", None) for live in (job.base, job.raw)]
    return narrowed(job, [None if ask is None else ask() for ask in asked])


def may_turn_narrow(live: LiveTree) -> bool:
    """Whether the code of the model, or of a module of it, speaks of autocast, as far as it can be read: a guess at
    what it will do."""
    kinds = {type(module): module for module in live.modules if has_code(live.adapter, module)}
    return any(map(_speaks_of_autocast, (live.model, *kinds.values())))


def _speaks_of_autocast(module: Any) -> bool:
    """Other than to turn it off, or to ask whether it is on."""
    plain = (code for code in codes_of(module) if not any(const is False for const in code.co_consts))
    return any(_AUTOCAST.match(name) for code in plain for name in (*code.co_names, *code.co_freevars))


def narrowed(job: Job, dtypes: Iterable[str | None]) -> Job:
    """The job with a tolerance that knows of narrower dtypes than it did; the same where they are not narrower."""
    tolerance = _narrowed(job.tolerance, dtypes)
    return job if tolerance is job.tolerance else replace(job, tolerance=tolerance)


def _narrowed(tolerance: Tolerance, dtypes: Iterable[str | None]) -> Tolerance:
    if tolerance.mode != "auto" and not (tolerance.rtol or tolerance.atol):  # equal to the bit, or not
        return tolerance
    narrow = max((spacing(dtype) for dtype in dtypes if dtype is not None), default=0.0)
    return tolerance if narrow <= tolerance.narrow else replace(tolerance, narrow=narrow)
