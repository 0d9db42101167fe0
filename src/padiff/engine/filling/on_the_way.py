"""Open choices settled as raw comes to their place, in the run in which it is compared.

What a choice is about is first used in the module around its place. When raw is about to call that, the module is
called by itself with each option, on what it is given there, and held against what base's returned: no model runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from padiff.capture.draws import Steady
from padiff.capture.one_step import floating
from padiff.capture.state import preserved
from padiff.capture.usage import UseWatch
from padiff.engine.families import floating as is_floating
from padiff.engine.fed.going_along import called_on_copies
from padiff.engine.filling.decide import Score, best_options, combined, score_of
from padiff.engine.filling.telling_parts import layers_in, told_by_layers
from padiff.engine.job import Job
from padiff.frameworks.containers import map_leaves
from padiff.frameworks.draws import watching_draws
from padiff.records import Array, Choice, Question, StepTrace, Value, WeightEntry, WeightPlan
from padiff.weights import apply_plan

Place = tuple[str, str]
Unseen = Callable[[], AbstractContextManager[None]]
_HARMLESS = (bool, int, float, complex, str, bytes, type(None))
"""What a module may be given any number of times. Others, a cache say, may be changed by a call."""
_Made = tuple[Array | None, dict[str, Array]]
"""What a module returned, and the layers in it."""


class OnTheWay:
    """The choices of a plan by whose defaults raw is filled now, and which of them were settled."""

    def __init__(self, job: Job, base: StepTrace, plan: WeightPlan) -> None:
        """``base`` is what base did."""
        self._job, self._plan = job, plan
        self._returned = _first_returned(base)
        self.chosen: dict[Question, tuple[str, str]] = {}
        self.untold: set[Question] = set()
        """Those that were tried, and of which neither the place nor the layers in it told anything."""
        self._open: dict[int, tuple[Place, list[Choice]]] = {}
        """By module of raw: its place, and the choices that are settled there."""
        paths = job.raw.tree.by_path()
        for choice in plan.choices:
            node = paths.get(choice.place[1]) if "" not in choice.place else None
            if node is not None and choice.place[0] in self._returned and _of_parameters(choice):
                module = job.raw.modules[node.index]
                self._open.setdefault(id(module), (choice.place, []))[1].append(choice)
        self._busy = False

    @contextmanager
    def watching(self, unseen: Unseen, watch: UseWatch) -> Iterator[None]:
        """Inside, raw runs, and ``watch`` sees what it uses; what happens inside ``unseen`` is no part of that."""
        live = self._job.raw
        modules = [module for module in live.modules if id(module) in self._open]

        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._busy or id(module) not in self._open:
                return
            place, choices = self._open.pop(id(module))
            if not _may_be_repeated((args, kwargs), live.adapter.is_tensor):
                return
            self._busy = True
            try:
                with unseen():
                    untold = self._settle(place, choices, functools.partial(self._called, module, args, kwargs))
                used = {entry.path for choice in choices for _, entries in choice.options for entry in entries}
                if untold and used.isdisjoint(watch.read):  # else something was made of them before
                    self.untold.update(choice.asks for choice in choices)
            finally:
                self._busy = False

        with ExitStack() as stack:
            for handle in live.adapter.attach(modules, enter, lambda *_: None, lambda *_: None):
                stack.callback(handle.remove)
            yield

    def _settle(self, place: Place, choices: Sequence[Choice], called: Callable[[Sequence[str]], _Made]) -> bool:
        """Fill with the options that are told; returns whether all could be tried, and nothing tells of any."""
        pairs = [(one, other) for one, other in layers_in(self._plan, [place])[place] if one in self._returned]
        known: dict[tuple[int, ...], _Made] = {}

        def made(options: Sequence[int]) -> _Made:
            found = known.get(tuple(options))
            if found is None:
                self._fill(choices, options, inside=place[1])
                found = known[tuple(options)] = called([other for _, other in pairs])
            return found

        def at_place(options: Sequence[int]) -> Score:
            output = made(options)[0]
            return score_of([] if output is None else [(self._returned[place[0]].numpy(), output)])

        def in_layers(options: Sequence[int]) -> dict[Place, Score]:
            layers = made(options)[1]
            seen = [(one, other) for one, other in pairs if other in layers]
            return {(one, other): score_of([(self._returned[one].numpy(), layers[other])]) for one, other in seen}

        found: tuple[int, ...] | None = None
        otherwise = False
        where = f"outputs of {place[1]}"
        try:
            with preserved(self._job.raw, buffers=True):
                found = best_options(choices, at_place)
                if found is None:
                    told = told_by_layers(choices, combined([len(one.options) for one in choices]), in_layers)
                    found, where = told[0] if told and told[1] else None, f"outputs of layers in {place[1]}"
                    otherwise = told is not None
        except Exception:  # the module's own: it cannot be called by itself
            otherwise = True
        self._fill(choices, found or (0,) * len(choices))
        for choice, option in zip(choices, found or (), strict=found is not None):
            self.chosen[choice.asks] = choice.options[option][0], where
        return found is None and not otherwise

    def _fill(self, choices: Sequence[Choice], options: Sequence[int], inside: str = "") -> None:
        """As options say; all tensors, or those inside a module."""
        entries: list[WeightEntry] = []
        for choice, option in zip(choices, options, strict=True):
            entries += [one for one in choice.options[option][1] if not inside or one.path.startswith(f"{inside}.")]
        apply_plan(self._job.base, self._job.raw, replace(self._plan, entries=tuple(entries), special=()))

    def _called(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], layers: Sequence[str]) -> _Made:
        """What the module returns by itself, on copies of what it is given, and what the layers in it do."""
        live = self._job.raw
        adapter, paths = live.adapter, live.tree.by_path()
        watched = {id(live.modules[paths[path].index]): path for path in layers if path in paths}
        inside: dict[str, Array] = {}

        def leave(layer: Any, output: Any) -> None:
            tensors = floating(adapter, output)
            if tensors and watched[id(layer)] not in inside:
                inside[watched[id(layer)]] = np.array(adapter.to_numpy(tensors[0][1]))

        with ExitStack() as stack:
            stack.enter_context(adapter.no_grad())
            stack.enter_context(watching_draws(adapter, Steady()))
            modules = [layer for layer in live.modules if id(layer) in watched]
            for handle in adapter.attach(modules, lambda *_: None, leave, lambda *_: None):
                stack.callback(handle.remove)
            tensors = floating(adapter, called_on_copies(adapter, module, args, kwargs))
            return (np.array(adapter.to_numpy(tensors[0][1])) if tensors else None), inside


def _first_returned(trace: StepTrace) -> dict[str, Value]:
    """By path, the first floating tensor that the first call of each module returned."""
    found: dict[str, Value] = {}
    for call in sorted(trace.calls, key=lambda call: call.index):
        made = next((slot.value for slot in call.outputs if is_floating(slot.value)), None)
        if made is not None and call.occurrence == 0 and not made.overwritten:
            found[call.path] = made
    return found


def _of_parameters(choice: Choice) -> bool:
    """Whether nothing that base's own run may have changed is copied."""
    return all(entry.role == "parameter" for _, entries in choice.options for entry in entries)


def _may_be_repeated(given: Any, is_tensor: Callable[[Any], bool]) -> bool:
    """Whether a call changes nothing that it is given, but for tensors."""
    odd: list[Any] = []

    def look(leaf: Any) -> Any:
        if not is_tensor(leaf) and not isinstance(leaf, _HARMLESS):
            odd.append(leaf)
        return leaf

    map_leaves(given, look)
    return not odd
