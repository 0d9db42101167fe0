"""The paddle adapter, asked by itself."""

from __future__ import annotations

import paddle

from padiff.frameworks.registry import adapter_named


def test_a_tensor_that_holds_nothing_shares_memory_with_none() -> None:
    """An einsum keeps such for its own backward."""
    model = paddle.nn.Linear(2, 2)
    adapter = adapter_named("paddle")
    one, other = paddle.base.core.eager.Tensor(), paddle.base.core.eager.Tensor()
    assert adapter.storage(one) != adapter.storage(other)
    assert adapter.storage(model.weight) == adapter.storage(model.weight.detach())
