"""What a step started from, so that it can be told afterwards why the weights or buffers it left differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from padiff.capture.held import Held
from padiff.capture.scaling import unscaled
from padiff.capture.session import Session
from padiff.diagnose.scene import Scene
from padiff.engine.explaining.moments import MOMENTS, ByPath, Moments
from padiff.engine.explaining.scenes import agreement, arrays_of, repeated, ties_of
from padiff.engine.job import Job
from padiff.engine.shared import shared_in_base, under_all_paths
from padiff.frameworks.settings import optimizer_settings_of, settings_of
from padiff.frameworks.stepping import optimizer_in
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Comparison, Divergence, Value, WeightEntry, WeightPlan
from padiff.weights import build

MOST_BYTES = 4 << 20
"""Kept of weights and gradients, all steps together."""
MOST_ALONE = 64 << 20
"""Of one weight, where none is small enough."""
_STRAIGHT = 1e-3
"""How far, of its largest number, what an optimizer remembers may be from a gradient times a factor."""
MOST_STEPS = 16
"""Steps whose gradients are kept; of later ones only the last."""


class AfterStep:
    """Keeps some of base's weights from before the optimizers' first step, and the gradients of every step since."""

    def __init__(self, job: Job, plan: WeightPlan, base: Session) -> None:
        self._job, self._plan, self._base = job, plan, base
        self._buffers: tuple[Mapping[str, Value | None], Mapping[str, Value | None]] = ({}, {})
        self._entries = _chosen(job, plan) if job.optimizers is not None else []
        self._start: dict[str, Array] = {}
        self._now: dict[str, Array] = {}
        self._gradients: dict[str, list[Array]] = {}
        self._steps = 0
        self.moments = Moments(job, plan)
        """What both optimizers remember."""

    def keep_weights(self) -> None:
        """Copy what the next step of base's optimizer starts from."""
        adapter, parameters = self._job.base.adapter, self._job.base.tensors()
        self._steps += 1
        for path in {source.path for entry in self._entries for source in entry.sources}:
            gradient = adapter.gradient(parameters[path])
            values = np.array(adapter.to_numpy(parameters[path]))
            self._start.setdefault(path, values)
            self._now[path] = values
            seen = None if gradient is None else unscaled(Held(adapter, gradient), self._base.scale)
            made = np.zeros_like(values) if seen is None else np.array(seen.numpy())
            kept = self._gradients.get(path, []) if self._whole else []
            self._gradients[path] = [*kept, made]

    @property
    def _whole(self) -> bool:
        """Whether the gradients of all steps are here."""
        return self._steps <= MOST_STEPS

    def keep_buffers(self, base: Mapping[str, Value | None], raw: Mapping[str, Value | None]) -> None:
        """What the step left in the buffers."""
        self._buffers = base, raw

    def of_weight(self, divergence: Divergence, compared: Sequence[Comparison]) -> tuple[Scene | None, str]:
        """The scene of a weight that differs and was kept, and its path where it is another than the one named."""
        first = divergence.comparison
        moment = moment_of(first)
        wrong = [
            one
            for one in compared
            if one.phase == "weight" and not one.agrees and one.outcome.numbers is not None and moment_of(one) == moment
        ]
        differing = {path_of(one): one for one in (first, *wrong)}
        known = [entry for entry in self._entries if entry.path in differing]
        if not known or not self._steps:
            return None, ""
        entry = next((entry for entry in known if entry.path == path_of(first)), None)
        if entry is None or math.prod(entry.shape) < 8:
            entry = max(known, key=lambda one: (len(one.shape) > 1, math.prod(one.shape)))
        scene = self._of_entry(entry, differing[entry.path])
        return scene, "" if entry.path == path_of(first) else entry.path

    def _of_entry(self, entry: WeightEntry, comparison: Comparison) -> Scene:
        assert self._job.optimizers is not None
        base, raw = self._job.base, self._job.raw
        settings = [
            settings_in_step(live, optimizer) for live, optimizer in zip((base, raw), self._job.optimizers, strict=True)
        ]
        tensors = base.tensors()
        weights = {source.path: base.adapter.to_numpy(tensors[source.path]) for source in entry.sources}
        found = raw.adapter.to_numpy(raw.tensors()[entry.path])
        expected = _built(entry, weights)
        moment = moment_of(comparison)
        if moment:
            expected, found = self._remembered(entry, self.moments.now[moment])
        nodes = [
            live.tree.by_path()[path].index for live, path in ((base, comparison.base_path), (raw, comparison.raw_path))
        ]
        steps = range(len(self._gradients[entry.sources[0].path]))
        history = tuple(_built(entry, {path: kept[step] for path, kept in self._gradients.items()}) for step in steps)
        clipped = self._clipped(entry, history, settings)
        if clipped is not None:
            history = tuple((one * clipped[0]).astype(one.dtype) for one in history)
        groups = (group for group in shared_in_base(self._job, self._plan) if entry in group)
        several = tuple(one.path for one in next(groups, ()))
        return Scene(
            phase="weight",
            role="parameter",
            base_kind=comparison.base_kind,
            raw_kind=comparison.raw_kind,
            layer=None,
            expected=expected,
            found=np.array(found),
            base_settings=settings[0],
            raw_settings=settings[1],
            agrees=agreement(comparison, self._job.tolerance.narrow),
            narrow=self._job.tolerance.narrow,
            tensor=comparison.name,
            moment=moment,
            before=None if moment else _built(entry, self._now),
            gradient=history[-1],
            start=_built(entry, self._start) if self._whole else None,
            history=history if self._whole else (),
            clipped=clipped,
            base_ties=ties_of(base, nodes[0]) if several else {},
            raw_ties=ties_of(raw, nodes[1]),
            parted=several,
        )

    def _clipped(
        self, entry: WeightEntry, history: Sequence[Array], settings: Sequence[Mapping[str, Any]]
    ) -> tuple[float, float] | None:
        """What the optimizers were given of the gradient of the first step, by what they remember of it; a side that
        remembers something else than a gradient has been given what the other has."""
        held = self.moments.held("moment1") if len(history) == 1 else None
        if held is None:
            return None
        shares = [
            _share(remembered, (1 - float(own.get("beta1") or 0.0)) * history[0])
            for remembered, own in zip(self._remembered(entry, held), settings, strict=True)
        ]
        known = [share for share in shares if share is not None]
        return (shares[0] or known[0], shares[1] or known[0]) if known else None

    def _remembered(self, entry: WeightEntry, held: tuple[ByPath, ByPath]) -> tuple[Array, Array]:
        """What base's optimizer remembers of what fills a tensor of raw, and raw's of that, under whichever name."""
        base, raw = (
            under_all_paths(live, one) for live, one in zip((self._job.base, self._job.raw), held, strict=True)
        )
        return _built(entry, base), raw[entry.path]

    def repeats(self, divergence: Divergence) -> bool:
        """Whether base's call returns the same each time it runs; asked where no call is to blame."""
        seen: list[dict[str, Array]] = []
        for _ in range(2):
            with self._base.again():
                calls = self._base.run(divergence.step, self._job.arguments()[0], loss_fn=None, backward=False).calls
            call = next((call for call in calls if call.index == divergence.base_call), calls[-1])
            seen.append({name: np.array(array) for name, array in arrays_of(call.outputs).items()})
        return all(repeated(array, seen[1][name]) for name, array in seen[0].items() if name in seen[1])

    def of_buffer(self, divergence: Divergence) -> Scene | None:
        """The scene of a buffer."""
        job, wrong = self._job, divergence.comparison
        entry = next((one for one in self._plan.entries if one.path == path_of(wrong)), None)
        raw = self._buffers[1].get(path_of(wrong))
        if entry is None or raw is None or not entry.sources:
            return None
        values = {source.path: self._buffers[0].get(source.path) for source in entry.sources}
        old = self._base.buffers_before()
        if any(value is None or path not in old for path, value in values.items()):
            return None
        with self._base.again():  # what the layer was given in that step
            calls = self._base.run(wrong.step, job.arguments()[0], loss_fn=None, backward=False).calls
        call = next((call for call in calls if call.path == wrong.base_path), None)
        base_node, raw_node = (
            live.tree.by_path()[path].index for live, path in ((job.base, wrong.base_path), (job.raw, wrong.raw_path))
        )
        return Scene(
            phase="buffer",
            role="buffer",
            base_kind=wrong.base_kind,
            raw_kind=wrong.raw_kind,
            layer=job.base.tree.nodes[base_node].layer,
            expected=_built(entry, {path: value.numpy() for path, value in values.items() if value is not None}),
            found=np.array(raw.numpy()),
            given={} if call is None else arrays_of(call.inputs),
            base_settings=settings_of(job.base.adapter, job.base.modules[base_node]),
            raw_settings=settings_of(job.raw.adapter, job.raw.modules[raw_node]),
            agrees=agreement(wrong, job.tolerance.narrow),
            narrow=job.tolerance.narrow,
            tensor=wrong.name,
            before=_built(entry, old),
        )


def _chosen(job: Job, plan: WeightPlan) -> list[WeightEntry]:
    """Matrices before vectors, which say little, and the small ones first."""
    learnt = {id(parameter) for parameter in job.base.parameters().values()}
    held = {  # under all names: a plan may go by any of a matrix that is tied
        path: 4 * math.prod(job.base.adapter.shape(tensor))
        for path, tensor in job.base.tensors().items()
        if id(tensor) in learnt
    }

    def size(entry: WeightEntry) -> int:
        return sum(held[path] for path in {source.path for source in entry.sources})

    entries = [
        entry
        for entry in plan.entries
        if entry.role == "parameter"
        and entry.sources
        and entry.function is None
        and all(source.path in held for source in entry.sources)
    ]
    entries.sort(key=lambda entry: (len(entry.shape) < 2, size(entry)))
    copies = 2 + min(job.steps, MOST_STEPS)
    left = MOST_BYTES
    found: list[WeightEntry] = []
    for entry in entries:
        if copies * size(entry) <= left:
            left -= copies * size(entry)
            found.append(entry)
    if not found and entries and size(entries[0]) <= MOST_ALONE:
        return entries[:1]
    return found


def _built(entry: WeightEntry, arrays: Mapping[str, Array]) -> Array:
    return np.array(build(entry, arrays))


def _share(remembered: Array, gradient: Array) -> float | None:
    """The factor between the two, where that is all there is between them."""
    size = float(np.square(gradient, dtype=np.float64).sum())
    if remembered.shape != gradient.shape or not size:
        return None
    share = float((remembered.astype(np.float64) * gradient).sum()) / size
    left = np.abs(remembered - share * gradient).max(initial=0.0)
    return share if share > 0 and left <= _STRAIGHT * np.abs(remembered).max(initial=0.0) else None


def settings_in_step(live: LiveTree, optimizer: Any) -> dict[str, Any]:
    """Of the optimizer, or of the one behind a function of the user's."""
    held = optimizer_in(live.adapter, optimizer)
    return {} if held is None else optimizer_settings_of(live.adapter, held)


def moment_of(comparison: Comparison) -> str:
    """Which moment of a parameter a comparison is about; none: the parameter itself."""
    name = comparison.name.partition(": ")[2]
    return name if comparison.phase == "weight" and name in MOMENTS else ""


def path_of(comparison: Comparison) -> str:
    """Of the parameter or buffer of raw that a comparison is about, or one of whose moments."""
    name = comparison.name.partition(": ")[0] if moment_of(comparison) else comparison.name
    return ".".join(part for part in (comparison.raw_path, name) if part)
