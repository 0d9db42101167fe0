"""Functions put in the place of others: any number at once, in any order, and nothing stays behind."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import paddle
import pytest
from tests.capture.test_ops import _functions
from tests.twins import read

from padiff.frameworks.paddle_builtins import watching_ops, watching_writes
from padiff.frameworks.patches import after_method, replaced


class Owner:
    @staticmethod
    def word() -> str:
        return "plain"


class Heir(Owner):
    pass


def louder(original: Any) -> Any:
    plain = original.__func__ if isinstance(original, staticmethod) else original
    return staticmethod(lambda: plain().upper())


def longer(original: Any) -> Any:
    plain = original.__func__ if isinstance(original, staticmethod) else original
    return staticmethod(lambda: plain() + "!")


@pytest.mark.parametrize("first_out", [0, 1])
def test_in_any_order(first_out: int) -> None:
    before = vars(Owner)["word"]
    stacks = [ExitStack(), ExitStack()]
    stacks[0].enter_context(replaced([(Owner, "word", louder)]))
    stacks[1].enter_context(replaced([(Owner, "word", longer), (Owner, "word", louder)]))
    assert Owner.word() == "PLAIN!"
    stacks[first_out].close()
    assert Owner.word() == ("PLAIN!" if first_out == 0 else "PLAIN")
    stacks[1 - first_out].close()
    assert vars(Owner)["word"] is before


def test_what_was_inherited_is_inherited_again() -> None:
    with replaced([(Heir, "word", louder)]):
        assert (Owner.word(), Heir.word()) == ("plain", "PLAIN")
    assert "word" not in vars(Heir)


class Scaler:
    def scale(self, value: int, *, twice: bool = False) -> int:
        return value * (4 if twice else 2)


def test_told_after_a_method_in_this_thread_only() -> None:
    before, one, told = Scaler.scale, Scaler(), []
    with after_method(Scaler, "scale", told.append):
        assert (one.scale(3), one.scale(value=3, twice=True)) == (6, 12)
        other = threading.Thread(target=one.scale, args=(1,))
        other.start()
        other.join()
    assert told == [one, one]
    assert Scaler.scale is before


def test_half_way_is_nothing() -> None:
    before = vars(Owner)["word"]

    def broken(original: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), replaced([(Owner, "word", louder), (Owner, "word", broken)]):
        pass
    with pytest.raises(AttributeError), replaced([(Owner, "word", louder), (Owner, "nothing", longer)]):
        pass
    assert vars(Owner)["word"] is before


def test_somebody_else_may_replace_it_meanwhile() -> None:
    with replaced([(Owner, "word", louder)]):
        ours = vars(Owner)["word"]
        Owner.word = staticmethod(lambda: "theirs")  # type: ignore[method-assign]
    assert Owner.word() == "theirs"
    Owner.word = ours  # type: ignore[method-assign]
    with replaced([(Owner, "word", longer)]):
        assert Owner.word() == "PLAIN!"
    Owner.word = staticmethod(lambda: "plain")  # type: ignore[method-assign]


class Counting:
    """Watches paddle's ops."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def seen(self, op: Any, args: Any, kwargs: Any, output: Any, frame: Any) -> None:
        self.names.append(str(op))

    def begin(self, op: Any, args: Any, kwargs: Any, frame: Any) -> Any:
        self.names.append(str(op))
        return op

    def end(self, token: Any, output: Any, args: Any) -> None:
        self.names.append(f"{token} ended")


def test_watchers_of_paddles_ops_nest() -> None:
    before = _functions()
    outer, inner, written = Counting(), Counting(), []
    x = paddle.ones([2])
    with watching_ops(outer, written.append):
        y = paddle.tanh(x)
        with pytest.raises(RuntimeError, match="left"), watching_ops(inner, written.append):
            y = y * 2.0
            y.add_(x)
            raise RuntimeError("left")
        with watching_writes(written.append):
            y = paddle.exp(y)
    paddle.tanh(y)
    assert inner.names == ["__mul__", "__mul__ ended", "add_", "add_ ended"]
    assert outer.names == ["tanh", *inner.names, "exp"]
    assert len(written) == 4, "both tensors of an addition in place, told to both"
    np.testing.assert_allclose(read(y), np.exp(2 * np.tanh([1.0, 1.0]) + 1), rtol=1e-6)
    assert _functions() == before


def test_what_another_thread_does_is_its_own() -> None:
    watcher = Counting()
    with watching_ops(watcher, lambda tensor: None):
        thread = threading.Thread(target=lambda: paddle.tanh(paddle.ones([2])))
        thread.start()
        thread.join()
    assert watcher.names == []


def test_modules_imported_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who imports an op by itself between two comparisons is found by the second."""
    import tests.capture.functions_of_mine as mine

    watcher, x = Counting(), paddle.ones([2])
    with watching_ops(watcher, lambda tensor: None):
        pass
    monkeypatch.setattr(mine, "own_tanh", paddle._C_ops.tanh, raising=False)
    with watching_ops(watcher, lambda tensor: None):
        mine.own_tanh(x)  # type: ignore[attr-defined]
    assert watcher.names == ["tanh"]
    assert mine.own_tanh is paddle._C_ops.tanh  # type: ignore[attr-defined]
