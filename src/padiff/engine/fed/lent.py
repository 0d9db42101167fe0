"""Raw with base's weights for a while: what optimizers made of both by rounding is no fault of any call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from padiff.engine.job import Job
from padiff.records import WeightPlan
from padiff.weights import build


@contextmanager
def lent_weights(job: Job, plan: WeightPlan) -> Iterator[None]:
    """Inside, raw's parameters have the elements that the plan would give them now; its own are kept aside.

    Gradients of two steps that agree, and the weights made of them, may still differ in a way that a layer makes much
    of: what backward sums up lies along what the layer is given next time.
    """
    adapter, sources, targets = job.raw.adapter, job.base.tensors(), job.raw.tensors()
    with ExitStack() as stack:
        for entry in plan.entries:
            if entry.role != "parameter" or not entry.sources or not entry.written:
                continue
            target = targets[entry.path]
            wanted = [source.path for source in entry.sources] if entry.function is None else list(sources)
            arrays = {path: job.base.adapter.to_numpy(sources[path]) for path in wanted}
            theirs, value = adapter.to_numpy(target), build(entry, arrays)
            if theirs.dtype != value.dtype or np.array_equal(theirs, value):
                continue
            lent = adapter.to_native(np.ascontiguousarray(value), like=job.raw.model)
            held = adapter.swap_elements(target, lent)
            stack.callback(adapter.swap_elements, target, held)
        yield
