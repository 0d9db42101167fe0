"""Python's cycle collector while a model runs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from padiff.capture.state import spared_collector
from padiff.frameworks import cycles


@pytest.fixture(autouse=True)
def thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cycles, "_wait", True)
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_inside_what_was_there_before_is_not_walked() -> None:
    gc.set_threshold(700, 10, 10)
    with spared_collector():
        assert gc.get_freeze_count() > 1000
        seldom = gc.get_threshold()
        assert all(now > before for now, before in zip(seldom, (700, 10, 10), strict=True))
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == (700, 10, 10)


def test_what_the_user_froze_stays_frozen() -> None:
    gc.set_threshold(700, 10, 10)
    gc.freeze()
    before = gc.get_freeze_count()
    with spared_collector():
        assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == before


def test_what_python_froze_when_it_began_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(700, 10, 10)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # as Python 3.12 begins with
    with spared_collector():
        assert gc.get_threshold() != (700, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_a_collector_that_is_spared_is_not_asked_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    count = gc.get_freeze_count

    def counted() -> int:
        asked.append(threading.current_thread().name)
        return count()

    def inner() -> None:
        with spared_collector():
            pass

    monkeypatch.setattr(gc, "get_freeze_count", counted)
    with spared_collector():
        other = threading.Thread(target=inner, name="other")
        other.start()
        other.join()
        inner()
        assert count() > 1000
    inner()
    main = threading.current_thread().name
    assert asked == [main, main]


def test_an_exception_ends_it() -> None:
    with pytest.raises(ValueError, match="mine"), spared_collector():
        raise ValueError("mine")
    assert gc.get_freeze_count() == 0
    with spared_collector():
        assert gc.get_freeze_count() > 1000
