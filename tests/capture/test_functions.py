"""Functions of the user's own are seen as one op each, where they are asked for, and only while a model runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.capture import functions_of_mine
from tests.capture.functions_of_mine import shifted
from tests.capture.test_ops import kinds, of, ops, run, small
from tests.twins import FRAMEWORKS

import padiff
from padiff.errors import ArgumentError

NAME = "tests.capture.functions_of_mine.shifted"


def forward(self: Any, x: Any) -> Any:
    return self.fc(shifted(x, by=1.0)) + functions_of_mine.shifted(x)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_op_while_watched(framework: str) -> None:
    original = functions_of_mine.shifted
    plain = kinds(run(framework, of(framework, forward), small()))
    with padiff.watch_function(NAME):
        trace = run(framework, of(framework, forward), small())
        assert functions_of_mine.shifted is original is shifted
    assert NAME not in plain
    assert [op.path for op in ops(trace)] == ["/shifted", "/shifted#1", "/add"]
    assert kinds(trace)[:2] == [NAME, NAME]
    assert ops(trace)[0].stack[-1].function == "forward"
    assert kinds(run(framework, of(framework, forward), small())) == plain


def test_can_be_taken_back() -> None:
    watched = padiff.watch_function(NAME)
    assert NAME in kinds(run("torch", of("torch", forward), small()))
    watched.remove()
    watched.remove()
    assert NAME not in kinds(run("torch", of("torch", forward), small()))


def test_methods() -> None:
    name = "tests.capture.functions_of_mine.Maker.doubled"
    maker = functions_of_mine.Maker()
    with padiff.watch_function(name):
        trace = run("torch", of("torch", lambda self, x: self.fc(maker.doubled(x))), small())
    assert kinds(trace) == [name]


@pytest.mark.parametrize("method", ["doubled", "halved", "tripled"])
def test_methods_of_every_sort_and_inherited_ones(method: str) -> None:
    """A plain one, a static one, one of the class; the heir has none of its own."""
    heir, name = functions_of_mine.Heir, f"tests.capture.functions_of_mine.Heir.{method}"
    model = of("torch", lambda self, x: self.fc(getattr(heir(), method)(x)))
    plain = run("torch", model, small())
    with padiff.watch_function(name):
        trace = run("torch", model, small())
    assert kinds(trace) == [name]
    assert (trace.calls[-1].outputs[0].value.numpy() == plain.calls[-1].outputs[0].value.numpy()).all()
    assert method not in vars(heir)


def test_a_function_that_is_watched_twice_is_one_op() -> None:
    original = functions_of_mine.shifted
    with padiff.watch_function(NAME), padiff.watch_function(NAME):
        trace = run("torch", of("torch", forward), small())
    assert [op.path for op in ops(trace)] == ["/shifted", "/shifted#1", "/add"]
    assert functions_of_mine.shifted is original


def test_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_THIRDPARTY_API", f" {NAME}, torch.tanh,")
    trace = run("torch", of("torch", forward), small())
    assert kinds(trace)[0] == NAME


def test_an_exception_inside_leaves_everything_in_place() -> None:
    original = functions_of_mine.broken

    def caught(self: Any, x: Any) -> Any:
        try:
            functions_of_mine.broken(x)
        except ValueError:
            return self.fc(torch.tanh(x))

    with padiff.watch_function("tests.capture.functions_of_mine.broken"):
        trace = run("torch", of("torch", caught), small())
    assert kinds(trace) == ["torch.tanh"]
    assert functions_of_mine.broken is original


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (3, "name is 3, expected the dotted name of a function"),
        ("shifted", "name is 'shifted', expected the dotted name of a function"),
        ("no_such_module_anywhere.f", "there is no module 'no_such_module_anywhere'"),
        ("tests.capture.functions_of_mine.nothing", "there is no function 'tests.capture.functions_of_mine.nothing'"),
    ],
)
def test_wrong_names(name: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        padiff.watch_function(name)


def test_compared_like_other_ops() -> None:
    base, raw = of("torch", forward), of("torch", forward)
    with padiff.watch_function(NAME):
        result = padiff.compare(base, raw, small(), level="op")
    assert result.aligned
    assert [one.raw_kind for one in result.comparisons if one.raw_path == "/shifted"] == [NAME]
