"""A substitute with a tensor's own elements: the same numbers, and the gradient on its way seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.twins import FRAMEWORKS

from padiff.frameworks.registry import adapter_named

NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_copy_is_followed(framework: str) -> None:
    adapter = adapter_named(framework)
    leaf = adapter.to_native(NUMBERS, requires_grad=True)
    seen: list[Any] = []

    def see(gradient: Any) -> Any:
        seen.append(np.array(adapter.to_numpy(gradient)))
        return seen[-1] * 2

    made = leaf * 1
    twin = adapter.copy_of(made, see)
    assert np.array_equal(adapter.to_numpy(twin), NUMBERS)
    assert adapter.storage(twin) != adapter.storage(made)
    adapter.backward((twin * twin).sum())
    assert np.array_equal(seen[0], 2 * NUMBERS)
    assert np.array_equal(adapter.to_numpy(adapter.gradient(leaf)), 4 * NUMBERS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("tracked", [False, True])
def test_a_copy_of_what_is_not_followed(framework: str, tracked: bool) -> None:
    adapter = adapter_named(framework)
    held = adapter.to_native(NUMBERS)
    twin = adapter.copy_of(held, tracked=tracked)
    assert adapter.requires_grad(twin) is tracked
    assert adapter.storage(twin) != adapter.storage(held)
    assert np.array_equal(adapter.to_numpy(twin), NUMBERS)
