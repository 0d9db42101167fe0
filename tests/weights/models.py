"""What the tests of weights share: the copy under test, a look at every tensor."""

from __future__ import annotations

from typing import Any

from padiff.autodiff.weights import assign_by_keyword
from padiff.frameworks import adapter_of_model, module_tree


def copy(base: Any, raw: Any, layer_map: Any = None) -> bool:
    """Copy base's weights into raw, whatever the frameworks are."""
    return assign_by_keyword(base_model=base, raw_model=raw, layer_map=layer_map)


def bits(model: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Every parameter and buffer under each of its paths, to the bit."""
    live = module_tree(adapter_of_model(model, "model"), model)
    # An LSTM of paddle keeps scratch memory among its buffers, which has no place before the first call on a GPU.
    held = {path: tensor for path, tensor in live.tensors().items() if "_dropout_state" not in path}
    arrays = {path: live.adapter.to_numpy(tensor) for path, tensor in held.items()}
    return {path: (str(array.dtype), array.shape, array.tobytes()) for path, array in arrays.items()}
