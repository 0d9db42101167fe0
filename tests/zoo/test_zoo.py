"""Two implementations of one architecture by different authors pair themselves, with no map written by hand.

For each pair: aligned, forward and backward; every tensor placed where a converter written by hand places it; a bug
planted in raw is found in the module it was planted in. Pairs that look equal and aren't are found at their place.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import padiff
from padiff.errors import PadiffError
from tests.zoo import libraries
from tests.zoo.pairs import PAIRS, Check, Models, Pair
from tests.zoo.prepare import State, fill, state_of, write

EQUAL = [pair for pair in PAIRS if pair.really_different_at is None]
DIFFERENT = [pair for pair in PAIRS if pair.really_different_at is not None]


@dataclass
class Case:
    """A pair, built and compared once for all tests."""

    pair: Pair
    models: Models
    before: State
    """Raw's tensors as it was built."""
    expected: State | None
    """Raw's tensors as the converter fills them."""
    outcome: padiff.Result | PadiffError
    after: State

    @property
    def result(self) -> padiff.Result:
        if isinstance(self.outcome, PadiffError):
            raise self.outcome
        return self.outcome

    def misplaced(self) -> list[str]:
        """Raw's tensors that are not what the converter says."""
        assert self.result is not None
        assert self.expected is not None
        assert self.expected.keys() <= self.before.keys()
        wrong = []
        for name, array in self.after.items():
            own = bool(self.pair.own) and name not in self.expected and re.fullmatch(self.pair.own, name)
            wanted = self.before[name] if own else self.expected[name]
            if not np.array_equal(array, wanted):
                wrong.append(name)
        return wrong


def compared(pair: Pair, small: bool) -> Case:
    for library in pair.libraries:
        if reason := libraries.missing(library):
            pytest.skip(reason)
    base, raw, inputs = pair.build(small)
    before = state_of(raw)
    expected = None if pair.convert is None else pair.convert(state_of(base))
    try:
        outcome: padiff.Result | PadiffError = padiff.compare(base, raw, inputs, phase=pair.phase)
    except PadiffError as error:
        outcome = error
    return Case(pair, (base, raw, inputs), before, expected, outcome, state_of(raw))


def sizes(pairs: list[Pair]) -> list[Any]:
    """Every pair at every size it has."""
    return [
        pytest.param((pair, small), id=f"{pair.name}, {'small' if small else 'deep'}")
        for pair in pairs
        for small in ((True, False) if pair.deep else (False,))
    ]


@pytest.fixture(scope="module", params=sizes(EQUAL))
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield compared(*request.param)
    gc.collect()


@pytest.fixture(scope="module", params=sizes(DIFFERENT))
def different(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield compared(*request.param)
    gc.collect()


def expect(request: pytest.FixtureRequest, pair: Pair, check: Check) -> None:
    """Mark what is known to fail."""
    if check in pair.fails:
        request.applymarker(pytest.mark.xfail(strict=True, reason=pair.fails[check]))


def test_aligned(case: Case, request: pytest.FixtureRequest) -> None:
    expect(request, case.pair, "aligned")
    assert case.result.aligned, str(case.result)
    assert case.result.coverage["outputs"] == 1.0
    assert not [note for note in case.result.notes if "could not be run on base's tensors" in note]
    if not case.pair.own:
        assert case.result.coverage["parameters"] == 1.0


def test_placed(case: Case, request: pytest.FixtureRequest) -> None:
    if case.expected is None:
        pytest.skip(f"no converter: {case.pair.remark}")
    expect(request, case.pair, "placed")
    wrong = case.misplaced()
    assert not wrong, f"{len(wrong)} of {len(case.after)} tensors: {wrong[:8]}"


def test_planted(case: Case, request: pytest.FixtureRequest) -> None:
    expect(request, case.pair, "planted")
    base, raw, inputs = case.models
    if case.expected is not None:
        fill(raw, case.expected)
    matrices = [(name, tensor) for name, tensor in raw.named_parameters() if tensor.ndim >= 2]
    name, tensor = matrices[len(matrices) // 2]
    write(tensor, 1.5 * tensor.detach().numpy())
    result = padiff.compare(base, raw, inputs, weights="keep", phase=case.pair.phase)
    assert not result.aligned
    assert result.divergence is not None
    place = name.rpartition(".")[0]
    if case.pair.whole:
        place = re.sub(case.pair.whole, r"\1", place)
    assert (result.divergence.raw_path, result.divergence.phase) == (place, "forward"), str(result)


def test_really_different(different: Case, request: pytest.FixtureRequest) -> None:
    expect(request, different.pair, "different")
    assert not different.misplaced()
    assert not different.result.aligned
    assert different.result.divergence is not None
    assert different.result.divergence.raw_path == different.pair.really_different_at, str(different.result)


def equal_layers(model: Any) -> list[tuple[str, str]]:
    """Of each kind of block the first two leaves that nothing but their names tells apart, in one block."""
    modules = dict(model.named_modules() if hasattr(model, "named_modules") else model.named_sublayers())
    blocks: dict[object, list[str]] = defaultdict(list)
    for path, module in modules.items():
        own = [(name, tuple(tensor.shape)) for name, tensor in module._parameters.items() if tensor is not None]
        numbers = tuple(re.findall(r"(?<![^.])\d+(?![^.])", path))
        if own and numbers and not list(module.children()):
            blocks[(numbers, type(module), tuple(sorted(own)))].append(path)
    found: dict[object, tuple[str, str]] = {}
    for paths in blocks.values():
        if len(paths) > 1:
            found[tuple(re.sub(r"\d+", "*", path) for path in paths[:2])] = (paths[0], paths[1])
    return list(found.values())


@pytest.mark.parametrize("pair", [pair for pair in EQUAL if pair.deep], ids=lambda pair: pair.name)
def test_swapped(pair: Pair) -> None:
    """Two equal layers of one block do each other's work: no weights are exchanged to make outputs match."""
    for library in pair.libraries:
        if reason := libraries.missing(library):
            pytest.skip(reason)
    for first, second in equal_layers(pair.build(True)[1]):
        base, raw, inputs = pair.build(True)
        modules = dict(raw.named_modules() if hasattr(raw, "named_modules") else raw.named_sublayers())
        one, other = modules[first], modules[second]
        one.forward, other.forward = other.forward, one.forward
        result = padiff.compare(base, raw, inputs, phase="forward")
        if not any(call.path == first for step in result.steps for call in step.raw.calls):
            continue  # paddle's recurrent layers don't call their cells
        assert not result.aligned, (first, second)
        assert result.divergence is not None
        place = result.divergence.raw_path
        around = [path.startswith(f"{place}.") for path in (first, second)]
        assert place in (first, second) or all(around), f"{place}: {first}, {second}"
        assert re.search(r"\d", place), f"{place}: {first}, {second}"
