"""Settling what was declared open, and nothing else, by running raw with each option."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from padiff.capture.one_step import Arguments
from padiff.capture.returned import returned
from padiff.compare.layouts import compare_in_any_layout
from padiff.engine.apart.stored import StoredTree, stored_returned
from padiff.engine.fed.going_along import best_of, each_way, made_inside
from padiff.engine.fed.prints import Prints
from padiff.engine.filling.telling_parts import layers_in, told_by_layers
from padiff.engine.outputs import Named, paired_outputs
from padiff.frameworks.tree import LiveTree
from padiff.records import Array, Choice, Question, Tolerance, WeightEntry, WeightPlan
from padiff.weights import apply_plan, is_filled

Fresh = Callable[[], tuple[Arguments, Arguments]]
Score = tuple[bool, float]
Chosen = Mapping[Question, tuple[str, str]]
"""By what a choice is about, and where: the option that was taken, and by what it was settled."""
_Returned = tuple[list[Named], dict[str, Array]]
"""What a run of raw returned, and the modules that are watched."""
SETTLED = 0.95
_MOST_TRIED = 48
_FEW = 16
"""Options besides the defaults, up to which each is tried by itself before several are."""
_ROUNDS = 3
_MOST_RUNS = 300
"""However many choices there are, raw is not run more often."""
_MOST_BYTES = 256 << 20
"""Of what runs returned, kept for later questions."""
_LAYOUTS = ("order of parts", "orientation")
"""What choices about how one tensor is laid out begin with."""
_TIGHT = 2e-6
"""An error that no other option could well undercut."""


def decide(base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan, expected: Sequence[Named]) -> WeightPlan:
    """Run raw with the default of every choice; where outputs differ from those ``expected``, try the other options.

    Where no options make the models' outputs match, something else is wrong. Then each choice is settled where it
    first makes a difference, by what the modules around it return: else it would be taken for the difference. Raw's
    own weights are put back afterwards: the plan is still to be carried out.
    """
    if not plan.choices or plan.problems:
        return plan
    trial = _Trial(base, raw, arguments, plan, expected)
    with _restored(raw):
        found, where = _search(plan.choices, trial)
    return settled(plan, found, where)


def by_numbers(
    base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan
) -> tuple[WeightPlan, frozenset[Question]]:
    """The plan with what is told so, and which choices are: of those with none of which their place returns what base's
    does, since its code is wrong, how a tensor is laid out. Of what base makes there raw makes most, too, with the
    right one; one forward of each tells."""
    places: dict[tuple[str, str], list[int]] = {}
    for number, choice in enumerate(plan.choices):
        if choice.what.startswith(_LAYOUTS):  # equal layers stay unsure
            places.setdefault(choice.place, []).append(number)
    if not places:
        return plan, frozenset()
    options = {
        place: combined([len(plan.choices[number].options) for number in numbers]) for place, numbers in places.items()
    }

    def filling(numbers: Sequence[int], chosen: Sequence[int]) -> Callable[[], None]:
        entries = [
            one
            for number, option in zip(numbers, chosen, strict=True)
            for one in plan.choices[number].options[option][1]
        ]
        return functools.partial(apply_plan, base, raw, replace(plan, entries=tuple(entries), special=()))

    known = made_inside(base, arguments()[0], [place[0] for place in places])
    ways = {place[1]: [filling(numbers, one) for one in options[place]] for place, numbers in places.items()}
    with _restored(raw):
        apply_plan(base, raw, plan)
        best = each_way(raw, arguments()[1], {place[1]: known[place[0]] for place in places}, ways)
    chosen, where = [choice.chosen for choice in plan.choices], dict[int, str]()
    for place, numbers in places.items():
        if place[1] in best:
            chosen = _put(chosen, numbers, options[place][best[place[1]]])
            where |= dict.fromkeys(numbers, f"most numbers in {place[1]}")
    return _told(plan, chosen, where), frozenset(plan.choices[number].asks for number in where)


def settled_by_values(base: LiveTree, raw: LiveTree, plan: WeightPlan) -> WeightPlan:
    """Where raw holds its weights already, the option that says what it holds; nothing is run."""
    if not plan.choices or plan.problems:
        return plan
    chosen: list[int] = []
    where: dict[int, str] = {}
    for number, choice in enumerate(plan.choices):
        fitting = [place for place, (_, entries) in enumerate(choice.options) if is_filled(base, raw, entries)]
        chosen.append(fitting[0] if fitting else 0)
        if fitting:
            where[number] = "values"
    return settled(plan, chosen, where)


def _search(choices: Sequence[Choice], trial: _Trial) -> tuple[tuple[int, ...], dict[int, str]]:
    """The option of each choice, and by what it was settled, for those that were."""
    by_outputs = dict.fromkeys(range(len(choices)), "outputs")
    if math.prod(len(choice.options) for choice in choices) <= _MOST_TRIED:
        found = best_options(choices, trial.of_outputs)
        return (
            (found, by_outputs) if found is not None else _by_numbers(choices, trial, *_place_by_place(choices, trial))
        )
    default = (0,) * len(choices)
    if trial.of_outputs(default)[0]:
        return default, by_outputs
    if sum(len(choice.options) - 1 for choice in choices) <= _FEW:
        search = _Search(trial.of_outputs, default)
        for other in combined([len(choice.options) for choice in choices])[1:]:
            search.look_at(other)
        if search.agrees:
            return search.chosen, by_outputs
    chosen, where = _place_by_place(choices, trial)
    found = chosen if trial.of_outputs(chosen)[0] else best_options(choices, trial.of_outputs)
    return (found, by_outputs) if found is not None else _by_numbers(choices, trial, chosen, where)


class _Trial:
    """Runs raw with chosen options, and says how far it is from base: (whether all agree, relative error)."""

    def __init__(
        self, base: LiveTree, raw: LiveTree, arguments: Fresh, plan: WeightPlan, expected: Sequence[Named]
    ) -> None:
        self._base, self._raw, self._arguments, self._plan = base, raw, arguments, plan
        self._expected = expected
        places = list({choice.place: None for choice in plan.choices})
        self._layers = layers_in(plan, places)
        watched = [*places, *(pair for pairs in self._layers.values() for pair in pairs)]
        self._watched = (tuple({one for one, _ in watched}), tuple({other for _, other in watched}))
        self._left = _MOST_RUNS
        self._known: dict[tuple[int, ...], _Returned] = {}
        self._room = _MOST_BYTES

    @functools.cached_property
    def _expected_at(self) -> Mapping[str, Array]:
        """What base's modules around the places return, which is asked for where outputs don't tell."""
        if isinstance(self._base, StoredTree):  # it ran elsewhere
            return stored_returned(self._base, self._watched[0])
        return returned(self._base, self._arguments()[0], self._watched[0])[1]

    def of_outputs(self, chosen: Sequence[int]) -> Score:
        outputs, _ = self._run(chosen)
        return score_of([(one, other) for (_, one), (_, other) in paired_outputs(self._expected, outputs)])

    def at(self, place: tuple[str, str], chosen: Sequence[int]) -> Score:
        """The same for what the modules around a place return."""
        _, made = self._run(chosen)
        one, other = self._expected_at.get(place[0]), made.get(place[1])
        return score_of([(one, other)] if one is not None and other is not None else [])

    def going_along(self, place: tuple[str, str], options: Sequence[Sequence[int]]) -> int | None:
        """Which of several ways to choose has raw compute most of what base computes there; None for the first."""
        self._left -= len(options)
        if self._left < 0 or isinstance(self._base, StoredTree) or isinstance(self._raw, StoredTree):
            return None
        made: list[Prints] = []
        for chosen in options:
            apply_plan(self._base, self._raw, _with(self._plan, chosen))
            made.append(made_inside(self._raw, self._arguments()[1], place[1:])[place[1]])
        return best_of(made_inside(self._base, self._arguments()[0], place[:1])[place[0]], made)

    def inside(self, place: tuple[str, str], chosen: Sequence[int]) -> dict[tuple[str, str], Score]:
        """The same for each of the layers in a place."""
        _, made = self._run(chosen)
        expected = self._expected_at
        pairs = [(one, other) for one, other in self._layers[place] if one in expected and other in made]
        return {(one, other): score_of([(expected[one], made[other])]) for one, other in pairs}

    def _run(self, chosen: Sequence[int]) -> _Returned:
        known = self._known.get(tuple(chosen))
        if known is not None:
            return known
        self._left -= 1
        if self._left < 0:
            return [], {}
        apply_plan(self._base, self._raw, _with(self._plan, chosen))
        found = returned(self._raw, self._arguments()[1], self._watched[1])
        size = sum(array.nbytes for array in (*(array for _, array in found[0]), *found[1].values()))
        if size <= self._room:  # another question may be put to the same run
            self._room -= size
            self._known[tuple(chosen)] = found
        return found


def score_of(pairs: Sequence[tuple[Array, Array]]) -> Score:
    outcomes = [compare_in_any_layout(one, other, Tolerance(mode="auto"), loosely=True) for one, other in pairs]
    sizes = [one.numbers.rmse / (one.numbers.base_rms or 1.0) for one in outcomes if one.numbers is not None]
    agree = bool(outcomes) and all(outcome.agrees for outcome in outcomes)
    return agree, max(sizes, default=0.0 if agree else math.inf)


def best_options(choices: Sequence[Choice], score: Callable[[Sequence[int]], Score]) -> tuple[int, ...] | None:
    """The options, one per choice, that make outputs match, and best of all; None when none do.

    All combinations are tried where they are few, else choice after choice, keeping what brings outputs nearer.
    """
    counts = [len(choice.options) for choice in choices]
    search = _Search(score, (0,) * len(counts))
    if math.prod(counts) <= _MOST_TRIED:
        for other in combined(counts)[1:]:
            search.look_at(other)
    else:
        for _ in range(_ROUNDS):
            before = search.chosen
            for place, option in ((place, option) for place, count in enumerate(counts) for option in range(count)):
                search.look_at((*search.chosen[:place], option, *search.chosen[place + 1 :]))
            if search.chosen == before:
                break
    return search.chosen if search.agrees else None


class _Search:
    """The best options so far; once they can't well be undercut, nothing more is tried."""

    def __init__(self, score: Callable[[Sequence[int]], Score], first: tuple[int, ...]) -> None:
        self._score, self.chosen = score, first
        self.agrees, self._least = score(first)

    def look_at(self, other: tuple[int, ...]) -> None:
        if other == self.chosen or (self.agrees and self._least <= _TIGHT):
            return
        agrees, error = self._score(other)
        if (not agrees, error) < (not self.agrees, self._least):
            self.chosen, self.agrees, self._least = other, agrees, error


def _place_by_place(choices: Sequence[Choice], trial: _Trial) -> tuple[tuple[int, ...], dict[int, str]]:
    """Options that make what is returned around their first place match, and by number of the choice where that is."""
    chosen = [0] * len(choices)
    where: dict[int, str] = {}
    places: dict[tuple[str, str], list[int]] = {}
    for number, choice in enumerate(choices):
        if "" not in choice.place:
            places.setdefault(choice.place, []).append(number)
    for _ in range(len(places)):
        before = len(where)
        for place, numbers in places.items():
            if numbers[0] not in where:
                open_here = [choices[number] for number in numbers]
                found = best_options(open_here, functools.partial(_score_at, trial, place, tuple(chosen), numbers))
                if found is not None:
                    chosen = _put(chosen, numbers, found)
                    where |= dict.fromkeys(numbers, f"outputs of {place[1]}")
        if len(where) == before:
            break
    for place, numbers in places.items():
        if numbers[0] in where:
            continue
        tried = combined([len(choices[number].options) for number in numbers])
        inside = functools.partial(_scores_inside, trial, place, tuple(chosen), numbers)
        told = told_by_layers([choices[number] for number in numbers], tried, inside)
        if told is not None:
            chosen = _put(chosen, numbers, told[0])
            where |= dict.fromkeys(numbers if told[1] else (), f"outputs of layers in {place[1]}")
    return tuple(chosen), where


def _by_numbers(
    choices: Sequence[Choice], trial: _Trial, chosen: tuple[int, ...], where: dict[int, str]
) -> tuple[tuple[int, ...], dict[int, str]]:
    """What no outputs settle, since they are wrong whatever is chosen: by how much of what is made there base makes."""
    for number, choice in enumerate(choices):
        if number in where or not choice.what.startswith(_LAYOUTS):  # equal layers stay unsure
            continue
        options = [tuple(_put(chosen, [number], [option])) for option in range(len(choice.options))]
        best = trial.going_along(choice.place, options)
        if best is not None:
            chosen = options[best]
            where = {**where, number: f"most numbers in {choice.place[1] or 'the model'}"}
    return chosen, where


def _score_at(
    trial: _Trial, place: tuple[str, str], chosen: Sequence[int], numbers: Sequence[int], options: Sequence[int]
) -> Score:
    return trial.at(place, _put(chosen, numbers, options))


def _scores_inside(
    trial: _Trial, place: tuple[str, str], chosen: Sequence[int], numbers: Sequence[int], options: Sequence[int]
) -> dict[tuple[str, str], Score]:
    return trial.inside(place, _put(chosen, numbers, options))


def combined(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """All combinations of options, the default first, or those that change one of them where that are too many."""
    every = sorted(itertools.product(*map(range, counts)), key=lambda one: sum(map(bool, one)))
    return every if len(every) <= _MOST_TRIED else [one for one in every if sum(map(bool, one)) < 2]


def _put(chosen: Sequence[int], numbers: Sequence[int], options: Sequence[int]) -> list[int]:
    found = list(chosen)
    for number, option in zip(numbers, options, strict=True):
        found[number] = option
    return found


@contextmanager
def _restored(live: LiveTree) -> Iterator[None]:
    with ExitStack() as stack:
        for tensor in {id(t): t for t in live.tensors().values()}.values():
            stack.callback(_put_back, live, tensor, live.adapter.clone(tensor))
        yield


def _put_back(live: LiveTree, tensor: Any, value: Any) -> None:
    live.adapter.assign(tensor, live.adapter.to_numpy(value))


def _with(plan: WeightPlan, chosen: Sequence[int]) -> WeightPlan:
    """The plan with the chosen options' entries; where two choices are about one tensor, the later one's."""
    changed: dict[str, WeightEntry] = {}
    for choice, option in zip(plan.choices, chosen, strict=True):
        if option:
            changed |= {entry.path: entry for entry in choice.options[option][1]}
    entries = tuple(changed.get(entry.path, entry) for entry in plan.entries)
    choices = tuple(replace(one, chosen=option) for one, option in zip(plan.choices, chosen, strict=True))
    return replace(plan, entries=entries, choices=choices)


def taken(plan: WeightPlan, chosen: Chosen) -> WeightPlan:
    """A plan that follows its defaults, with options that were chosen; what it does not have that way stays open."""
    options, where = [0] * len(plan.choices), dict[int, str]()
    for number, choice in enumerate(plan.choices):
        name, told = chosen.get(choice.asks, ("", ""))
        names = [one for one, _ in choice.options]
        if name in names:
            options[number], where[number] = names.index(name), told
    return _told(plan, options, where) if where else plan


def settled(plan: WeightPlan, chosen: Sequence[int], where: Mapping[int, str], known: Sequence[int] = ()) -> WeightPlan:
    """The plan with chosen options; ``where`` says, by number of the choice, what has settled those that are, but for
    those of which the plan says it already."""
    return _doubtful(_told(plan, chosen, where), {*where, *known})


def _told(plan: WeightPlan, chosen: Sequence[int], where: Mapping[int, str]) -> WeightPlan:
    """What was open and has been settled says so, and by what."""
    plan = _with(plan, chosen)
    said: dict[str, tuple[str, bool]] = {}
    for number, choice in enumerate(plan.choices):
        if number in where:
            match = f"chosen because {where[number]} match: {choice.options[choice.chosen][0]}"
            said |= {entry.path: (match, bool(choice.chosen)) for entry in choice.options[0][1]}
    entries = []
    for entry in plan.entries:
        if entry.path in said:
            match, changed = said[entry.path]
            evidence = match if changed else f"{entry.evidence}, {match}"
            entry = replace(entry, evidence=evidence, confidence=max(entry.confidence, SETTLED), alternatives=())
        entries.append(entry)
    return replace(plan, entries=tuple(entries))


def _doubtful(plan: WeightPlan, settled: Collection[int]) -> WeightPlan:
    """No option makes outputs match: the default stays, marked, with what else it could have been."""
    others: dict[str, tuple[str, ...]] = {}
    for number, choice in enumerate(plan.choices):
        if number not in settled:
            labels = tuple(label for label, _ in choice.options[1:])
            others |= {entry.path: entry.alternatives or labels for entry in choice.options[0][1]}
    entries = tuple(
        replace(entry, confidence=min(entry.confidence, 0.6), alternatives=others[entry.path])
        if entry.path in others
        else entry
        for entry in plan.entries
    )
    return replace(plan, entries=entries)
