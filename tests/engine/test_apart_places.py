"""Runs apart, without sync: where a difference is cancelled again, and what summaries can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import padiff

torch = pytest.importorskip("torch")
nn = torch.nn
X = torch.linspace(-2.0, 2.0, 30).reshape(5, 6)


class Cancelling(nn.Module):  # type: ignore[misc, name-defined]
    """The norm takes the factor away again."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8, bias=False)
        self.norm = nn.LayerNorm(8, eps=0.0)
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return self.norm(self.second(self.first(x) * self.factor))


class Around(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.block = Cancelling(factor)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(x))


class Positions(nn.Module):  # type: ignore[misc, name-defined]
    """Positions are looked up once, or once for every row."""

    def __init__(self, repeat: bool = False, shift: int = 0) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)
        self.repeat, self.shift = repeat, shift

    def forward(self, x: Any) -> Any:
        places = torch.arange(self.shift, self.shift + 4)[None]
        return self.head(x[:, None] + self.table(places.expand(5, -1) if self.repeat else places))


def captured(model: Any, to: Path, **options: Any) -> Path:
    with padiff.capture(model, to, **options):
        model(X).square().mean().backward()
    return to


def seeded(build: Any, *args: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return build(*args, **options)


@pytest.mark.parametrize("kind", ["full", "stats"])
def test_what_a_norm_takes_away_is_blamed_on_the_code_that_did_it(kind: Any, tmp_path: Path) -> None:
    a = captured(seeded(Around), tmp_path / "a", kind=kind)
    b = captured(seeded(Around, 1.25), tmp_path / "b", kind=kind)
    found = padiff.compare_dumps(a, b).divergence
    assert found is not None
    assert (found.phase, found.base_path, found.raw_path) == ("forward", "block", "block")
    assert "between its children block.first" in found.note and "block.second" in found.note


def test_statistics_of_what_one_side_repeats_are_no_difference(tmp_path: Path) -> None:
    a = captured(seeded(Positions), tmp_path / "a", kind="stats")
    b = captured(seeded(Positions, repeat=True), tmp_path / "b", kind="stats")
    result = padiff.compare_dumps(a, b)
    assert result.aligned, result
    assert padiff.compare_dumps(b, a).aligned


def test_statistics_of_what_one_side_repeats_still_tell(tmp_path: Path) -> None:
    a = captured(seeded(Positions), tmp_path / "a", kind="stats")
    b = captured(seeded(Positions, repeat=True, shift=2), tmp_path / "b", kind="stats")
    found = padiff.compare_dumps(a, b).divergence
    assert found is not None and found.raw_path == ""
    assert "before its first child table" in found.note


def test_statistics_of_a_gradient_that_one_side_lacks(tmp_path: Path) -> None:
    a = captured(seeded(Around), tmp_path / "a", kind="stats")
    model = seeded(Around)
    model.block.norm.weight.requires_grad_(False)
    found = padiff.compare_dumps(a, captured(model, tmp_path / "b", kind="stats")).divergence
    assert found is not None
    assert (found.phase, found.raw_path) == ("gradient", "block.norm")
    assert "base has it, raw has none" in found.comparison.outcome.message


def test_clipped_gradients_are_no_further_places(tmp_path: Path) -> None:
    """Base clips before its optimizer steps, raw does not; what raw's code does wrong is the only place besides."""
    for name, factor, options in (("a", 1.0, {}), ("b", 1.25, {"base": tmp_path / "a", "sync": True})):
        model = seeded(Around, factor)
        stepped = torch.optim.SGD(model.parameters(), 0.1)
        with padiff.capture(model, tmp_path / name, optimizer=stepped, **options):
            model(X).square().sum().backward()
            if name == "a":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            stepped.step()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert [(one.phase, one.raw_path) for one in result.divergences] == [("forward", "block")]


class Nested(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.stem(x))


class Flat(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.curve, self.last = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.curve(self.first(x)))


@pytest.mark.parametrize("sync", [False, True])
def test_what_was_compared_is_not_without_partner(sync: bool, tmp_path: Path) -> None:
    """A leaf without tensors finds its partner by what it returns."""
    base, raw = Nested(), Flat()
    with padiff.capture(base, tmp_path / "a"):
        base(X).square().mean().backward()
    with padiff.capture(raw, tmp_path / "b", base=tmp_path / "a", sync=sync):
        raw(X).square().mean().backward()
    result = padiff.compare_dumps(tmp_path / "a", tmp_path / "b")
    assert result.aligned, str(result)
    assert any((one.base_path, one.raw_path) == ("stem.1", "curve") for one in result.comparisons)
    assert [one.path for one in result.unmatched] == ["stem"]


def test_a_raw_that_raises_is_not_said_not_to_fit(tmp_path: Path) -> None:
    """How it uses its tensors would have told how to fill it: what it raises is what the user has to know."""

    class Raises(Flat):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(5, 5)

        def forward(self, x: Any) -> Any:
            raise ZeroDivisionError("mine")

    base, raw = Nested(), Raises()
    with padiff.capture(base, tmp_path / "a"):
        base(X)
    with pytest.raises(ZeroDivisionError, match="mine"), padiff.capture(raw, tmp_path / "b", base=tmp_path / "a"):
        raw(X)


def test_a_raw_that_wants_a_mask_of_another_shape(tmp_path: Path) -> None:
    """Base's arguments are no use to it: it is filled when it is called with its own."""

    class Masked(Nested):
        def forward(self, x: Any, mask: Any) -> Any:
            return super().forward(x * mask.reshape(5, 1))

    class Wider(Flat):
        def forward(self, x: Any, mask: Any) -> Any:
            return super().forward(x * mask.reshape(5, 6))

    base, raw = Masked(), Wider()
    with padiff.capture(base, tmp_path / "a"):
        base(X, torch.ones(5))
    with padiff.capture(raw, tmp_path / "b", base=tmp_path / "a"):
        raw(X + 1, torch.ones(5, 6))
    assert torch.equal(raw.first.weight, base.stem[0].weight)
    found = {one.raw_path: one.agrees for one in padiff.compare_dumps(tmp_path / "a", tmp_path / "b").comparisons}
    assert found["first"] and found["last"]
