"""Listening changes nothing: not what base computes, not the generators, nothing of the frameworks afterwards."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff
from padiff.capture.draws import Listener
from padiff.frameworks import adapter_named
from tests.randomness.layers import LAYERS
from tests.randomness.models import FEATURES, KINDS, data, net
from tests.twins import FRAMEWORKS, PAIRS, randomise


def states() -> list[Any]:
    paddle_state = [one.__getstate__() for one in paddle.get_rng_state()]
    numpy_state = [np.asarray(part).tolist() for part in np.random.get_state()]
    return [torch.get_rng_state().tolist(), paddle_state, numpy_state, random.getstate()]


def seed() -> None:
    torch.manual_seed(3)
    paddle.seed(3)


def run(framework: str, model: Any, x: Any) -> Any:
    tensor = torch.from_numpy(x) if framework == "torch" else paddle.to_tensor(x)
    return model(tensor).detach().numpy()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", [*KINDS, *LAYERS])
def test_listening_changes_neither_numbers_nor_generators(framework: str, kind: str) -> None:
    if kind in KINDS:
        model, x = net(framework, KINDS[kind]), data()
    else:
        model, x = LAYERS[kind][framework](), data(3, 4, FEATURES)
        model.train()
    seed()
    alone, after = run(framework, model, x), states()
    seed()
    listener = Listener()
    with adapter_named(framework).watch_draws(listener):
        heard = run(framework, model, x)
    assert listener.draws
    assert np.array_equal(alone, heard)
    assert states() == after


@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_generators_are_as_the_caller_left_them(base: str, raw: str) -> None:
    models = net(base, KINDS["dropout"]), net(raw, KINDS["dropout"])
    compare = padiff.compare  # some module that is imported with it draws
    before = states()
    assert compare(*models, data()).aligned
    assert states() == before


def functions() -> dict[tuple[str, str], int]:
    """Every function of paddle that could be replaced."""
    owners: dict[str, Any] = {"Tensor": vars(paddle.Tensor), "_C_ops": vars(paddle._C_ops)}
    owners |= {name: vars(module) for name, module in list(sys.modules.items()) if name.startswith("paddle.tensor")}
    return {(owner, name): id(value) for owner, held in owners.items() for name, value in held.items()}


def test_nothing_stays_replaced() -> None:
    model = net("paddle", KINDS["drop path"])
    with adapter_named("paddle").watch_draws(Listener()):  # the places are looked up once
        pass
    before = functions()
    assert padiff.compare(model, net("paddle", KINDS["drop path"]), data()).aligned
    assert functions() == before

    def fail(x: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        padiff.compare(model, net("paddle", {"paddle": fail}), data())
    assert functions() == before


def test_contexts_may_end_in_any_order_and_hear_their_own_thread_only() -> None:
    before = functions()
    adapter = adapter_named("paddle")
    mine, theirs = Listener(), Listener()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with adapter.watch_draws(theirs), adapter.watch_writes(lambda tensor: None):
            entered.set()
            leave.wait(10)
            paddle.rand([2])

    thread = threading.Thread(target=other)
    with adapter.watch_writes(lambda tensor: None):
        thread.start()
        entered.wait(10)
        with adapter.watch_draws(mine):
            paddle.rand([3])
    leave.set()
    thread.join()
    assert [draw.value.shape for draw in mine.draws] == [(3,)]
    assert [draw.value.shape for draw in theirs.draws] == [(2,)]
    assert functions() == before


def test_two_comparisons_at_once() -> None:
    found: list[bool] = []

    def compare() -> None:
        models = net("paddle", KINDS["two dropouts"]), net("paddle", KINDS["two dropouts"])
        found.append(padiff.compare(*models, data()).aligned)

    threads = [threading.Thread(target=compare) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_that_draws_nothing_is_not_listened_to(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    adapter = type(adapter_named(framework))
    monkeypatch.setattr(adapter, "watch_draws", lambda self, dice: heard.append(type(dice).__name__))
    plain = {"torch": torch.tanh, "paddle": paddle.tanh}
    models = net(framework, plain), net(framework, plain)
    randomise(models[1], seed=3)
    assert padiff.compare(*models, data()).aligned
    assert heard == []
