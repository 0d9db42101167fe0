"""A run of raw along base's dump: base's weights and inputs, and base's tensors at the border of every call."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from padiff.align import pair_modules, pair_slots
from padiff.capture.draws import Listener
from padiff.capture.feeding import Feed, FeedingRecorder, See
from padiff.capture.held import Held, HostValue
from padiff.capture.observers import Observer
from padiff.capture.one_step import Arguments
from padiff.capture.ops import WantedOps
from padiff.capture.recorder import Recorder
from padiff.capture.replay import Replay
from padiff.capture.usage import first_use
from padiff.engine.apart.generators import as_in
from padiff.engine.apart.heard import heard_in, plain_gaps
from padiff.engine.apart.replay import follows, judge, reference_from
from padiff.engine.apart.stored import stored_noise, stored_tree, stored_usage
from padiff.engine.captured.dumping import StepSink
from padiff.engine.captured.rehearsal import repeatable
from padiff.engine.captured.selecting import NO_STEP
from padiff.engine.fed.local import LocalRun
from padiff.engine.filling.matching import Matching, alike, match
from padiff.engine.job import Job
from padiff.engine.randomness import replay_beside
from padiff.errors import DumpError, WeightError
from padiff.frameworks.containers import map_leaves, once_each
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Call, ModulePairs, Rules, Slot, Tolerance, Usage, Value
from padiff.store import Dump, Opaque
from padiff.weights import apply_plan

Changed = tuple[tuple[Any, ...], dict[str, Any]]

T = TypeVar("T")


class Alongside:
    """What base's dump does to a run of raw."""

    def __init__(
        self,
        dump: Dump,
        live: LiveTree,
        tolerance: Tolerance,
        rules: tuple[Rules, Mapping[str, Any]],
        *,
        weights: bool,
        inputs: bool,
        sync: bool,
        randomness: Literal["replay", "own"] = "replay",
    ) -> None:
        if not len(dump.steps):
            raise DumpError(f"base: the dump {dump.path} holds no step", NO_STEP)
        if (weights or inputs or sync) and dump.kind != "full":
            raise DumpError(
                f'base: the dump {dump.path} is of kind "{dump.kind}" and holds no tensors',
                'capture base with kind="full"; with weights="keep" and inputs="keep" nothing is taken from it',
            )
        if (weights or inputs or sync) and isinstance(dump.extra.get("only"), list):
            raise DumpError(
                f"base: the dump {dump.path} was captured with only=..., and holds neither base's inputs nor "
                "the weights of other modules",
                'capture base without only=; with weights="keep" and inputs="keep" nothing is taken from it',
            )
        self.dump, self._live = dump, live
        self._weights, self._inputs, self._sync = weights, inputs, sync
        self._replays = randomness == "replay"
        self._base = stored_tree(dump)
        self._steps = {step.number for step in dump.steps}
        self._job = Job(
            self._base,
            live,
            arguments=_weakly(self._arguments),
            tolerance=tolerance,
            rules=rules[0],
            weight_rules=rules[1],
        )
        self._given: Arguments | None = None
        self._matching: Matching | None = None
        self._modules: ModulePairs | None = None
        self._feeding: dict[int, Feeding] = {}

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(self._steps)

    @property
    def extra(self) -> dict[str, Any]:
        """What the dump says about it."""
        return {"base": {"identity": self.dump.identity, "synchronised": self._sync}}

    # --- before the first call

    def start(self) -> None:
        """Fill raw, where base's inputs are something that raw can be called with; else the first call will tell."""
        given = self._recorded()
        if given is not None:
            self._match(given, may_fail=True)

    def _match(self, given: Arguments, *, may_fail: bool = False) -> None:
        self._given = given
        used, error = first_use(self._live, self._fresh(given))
        if error is not None and may_fail:  # raw may want something else than base: how it is called will tell
            return
        if error is not None:  # the model's own: it comes again when the model is called for good
            used = Usage()
        self._job = replace(self._job, uses=(stored_usage(self.dump.steps[0]), used))
        self._matching = match(self._job, run=True)
        plan = self._matching.plan
        if self._weights:
            if plan.problems:
                if error is not None:  # how raw uses its tensors would have told
                    raise error
                problem = plan.problems[0]
                places = f"base {problem.base_path or '(model)'}, raw {problem.raw_path or '(model)'}"
                raise WeightError(f"base's weights don't fit into raw ({places}): {problem.message}", problem.hint)
            apply_plan(self._base, self._live, plan)
        rules = replace(self._job.rules, alike=alike(self._job))
        trees = self._base.tree, self._live.tree
        self._modules = pair_modules(*trees, rules, anchors=self._matching.anchors)

    def _recorded(self) -> Arguments | None:
        """Base's first arguments for raw's framework; None where raw cannot be called with them."""
        arguments = self.dump.steps[0].arguments
        if arguments is None or _opaque(arguments):
            return None
        args, kwargs = (map_leaves(part, self._native) for part in arguments)
        try:
            inspect.signature(self._live.adapter.forward_signature(self._live.model)).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        return Arguments(tuple(args), kwargs)

    def _native(self, leaf: Any) -> Any:
        """A stored tensor as one of raw's framework."""
        is_value = hasattr(leaf, "numpy") and hasattr(leaf, "overwritten")
        return self._live.adapter.to_native(np.array(leaf.numpy()), like=self._live.model) if is_value else leaf

    def _arguments(self) -> tuple[Arguments, Arguments]:
        assert self._given is not None
        return Arguments((), {}), self._fresh(self._given)

    def _fresh(self, given: Arguments) -> Arguments:
        adapter = self._live.adapter

        @once_each
        def copied(leaf: Any) -> Any:
            """What remembers having been given (a cache) must not learn of a run that is padiff's own."""
            if adapter.is_tensor(leaf):
                return adapter.clone(leaf)
            return leaf if repeatable((leaf,), adapter.is_tensor) else copy.deepcopy(leaf)

        return Arguments(
            tuple(map_leaves(arg, copied) for arg in given.args),
            {name: map_leaves(arg, copied) for name, arg in given.kwargs.items()},
        )

    # --- one step

    def given(self, step: int, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed | None:
        """What raw is called with instead, in a call of a step; the models are matched now if that had to wait."""
        changed = self._exchanged(step, call, args, kwargs) if self._inputs and step in self._steps else None
        if self._matching is None:
            self._match(Arguments(*(changed or (args, kwargs))))
        elif self._weights and call == 0 and 0 < step == min(self._steps):  # what raw has learnt before is its own
            apply_plan(self._base, self._live, self._matching.plan)
        return changed

    def _exchanged(self, step: int, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Changed | None:
        """Raw's own arguments with base's tensors in the place of raw's that they belong to."""
        adapter = self._live.adapter
        roots = [one for one in self.dump.step(step).calls if one.parent < 0]
        if call >= len(roots):
            return None
        root = roots[call]
        named = [(str(place), value) for place, value in enumerate(args)] + list(kwargs.items())
        slots: list[Slot] = []
        tensors: list[Any] = []
        for name, value in named:
            for inner, tensor in adapter.flatten(value):
                slots.append(Slot(f"{name}.{inner}" if inner else name, len(tensors), Held(adapter, tensor)))
                tensors.append(tensor)
        pairs, _, _ = pair_slots(root.inputs, slots)
        instead: dict[int, Any] = {}
        for one, other in pairs:
            mine = tensors[other.tensor]
            if one.value.overwritten or len(one.value.shape) != len(adapter.shape(mine)):
                continue
            array = np.array(one.value.numpy()).astype(adapter.to_numpy(mine).dtype)
            instead[id(mine)] = adapter.to_native(
                array, like=self._live.model, requires_grad=adapter.requires_grad(mine)
            )

        def exchanged(leaf: Any) -> Any:
            return instead.get(id(leaf), leaf)

        return tuple(map_leaves(a, exchanged) for a in args), {k: map_leaves(v, exchanged) for k, v in kwargs.items()}

    # --- random draws

    def replays(self, step: int) -> bool:
        """Whether raw is given base's draws in a step: those that the dump holds, which may be none."""
        return self._replays and step in self._steps and self._modules is not None and self.dump.step(step).heard

    def listener(self, step: int, *, draws: bool) -> Replay | None:
        """Who gives raw base's draws; nobody where neither draws. ``draws`` says whether raw looks as if it did."""
        assert self._modules is not None and self._matching is not None
        base = self.dump.step(step)
        if not (draws or base.draws or base.unseen):
            return None
        twins = self._matching.anchors is None
        return replay_beside(self._job, self._modules, base.calls, heard_in(base), twins=twins)

    def generators(self, step: int, call: int) -> AbstractContextManager[None]:
        """Inside, numpy's and Python's generators give raw what they gave base."""
        return as_in(self.dump.step(step), call)

    # --- feeding

    def recorder(
        self, step: int, observer: Observer, listener: Listener | None, ops: WantedOps | None
    ) -> Recorder | None:
        """What feeds raw base's tensors; None for a step that base's dump does not hold, or where nothing is fed."""
        if not self._sync or step not in self._steps or self._matching is None or self._modules is None:
            return None
        base = self.dump.step(step)
        reference = reference_from(base, stored_noise(base)[1])
        gradients = self._live.adapter.grad_enabled()
        backward = gradients and follows(reference)
        twins = self._matching.anchors is None
        run, _ = judge(self._job, self._modules, reference, twins=twins, backward=backward)
        feeding = self._feeding[step] = Feeding(run)
        return FeedingRecorder(
            self._live, feeding, gradients=gradients, hooks=False, observer=observer, listener=listener, ops=ops
        )

    def ending(self, step: int, sink: StepSink, listener: Listener | None) -> dict[str, Any]:
        """What the step's dump must know of feeding and replaying."""
        found: dict[str, Any] = {}
        if isinstance(listener, Replay):
            found |= {"replayed": listener.replayed, "draw_gaps": plain_gaps(listener.gaps())}
        feeding = self._feeding.pop(step, None)
        if feeding is None:
            return found
        if feeding.order:
            sink.step.borders(feeding.contributions, feeding.arrivals)
        return {**found, "fed": True, "fed_order": feeding.order}


class Feeding:
    """Feeds what the judge says, and keeps the gradients that came back, as they came."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        self.contributions: dict[tuple[int, int], Value] = {}
        self.arrivals: dict[int, Value] = {}
        self.order: list[list[int]] = []
        """Call (-1 for what arrives at an output) and tensor."""

    def feed(self, call: Call) -> Mapping[int, Feed]:
        return self._watched(self._run.feed(call), call.index)

    def hand_on(self, call: Call) -> Mapping[int, Feed]:
        return self._watched(self._run.hand_on(call), -1)

    def tagged(self, call: Call) -> Mapping[int, Feed]:
        return self._watched(self._run.tagged(call), -1)

    def _watched(self, feeds: Mapping[int, Feed], call: int) -> dict[int, Feed]:
        return {
            tensor: feed if feed.see is None else replace(feed, see=partial(self._seen, feed.see, call, tensor))
            for tensor, feed in feeds.items()
        }

    def _seen(self, see: See, call: int, tensor: int, gradient: Value) -> Array | Held | None:
        kept = HostValue(np.array(gradient.numpy()))
        if call < 0:
            self.arrivals[tensor] = kept
        else:
            self.contributions[call, tensor] = kept
        self.order.append([call, tensor])
        return see(gradient)


def _opaque(value: Any) -> bool:
    """Whether arguments hold something that the dump cannot give back: an object, a tensor without its elements."""
    if isinstance(value, (tuple, list)):
        return any(_opaque(item) for item in value)
    if isinstance(value, dict):
        return any(_opaque(item) for item in value.values())
    return isinstance(value, Opaque) or getattr(value, "whole", True) is False


def _weakly(method: Callable[[], T]) -> Callable[[], T]:
    """The method without its owner: who is asked by something of its own would not go before the collector comes."""
    known = weakref.WeakMethod(method)

    def ask() -> T:
        found = known()
        assert found is not None
        return found()

    return ask
