"""A checkpoint draws again in backward, and is given the same again."""

from __future__ import annotations

from typing import Any

import pytest
from paddle.distributed.fleet.utils import recompute
from torch.utils.checkpoint import checkpoint

import padiff
from tests.randomness.models import KINDS, Draw, data, net
from tests.twins import PAIRS


def again(kind: str, framework: str, reentrant: bool) -> dict[str, Draw]:
    """The draw inside a checkpoint."""
    way = KINDS[kind][framework]

    def torch_way(x: Any) -> Any:
        return checkpoint(lambda y: way(y.sin()).cos(), x, use_reentrant=reentrant)

    def paddle_way(x: Any) -> Any:
        return recompute(lambda y: way(y.sin()).cos(), x)

    return {"torch": torch_way, "paddle": paddle_way}


def plainly(kind: str, framework: str, reentrant: bool) -> dict[str, Draw]:
    way = KINDS[kind][framework]
    return {name: lambda x: way(x.sin()).cos() for name in ("torch", "paddle")}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["drop path", "drop path by comparing", "two dropouts"])
@pytest.mark.parametrize(("base", "raw"), PAIRS)
def test_recomputation_is_given_the_same_draws(kind: str, base: str, raw: str, reentrant: bool) -> None:
    for ours, theirs in ((plainly, again), (again, plainly), (again, again)):
        models = net(base, ours(kind, base, reentrant)), net(raw, theirs(kind, raw, reentrant))
        result = padiff.compare(*models, data())
        assert result.aligned, str(result)
        assert result.replayed > 0
