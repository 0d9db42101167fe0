"""What is hung around calls of torch's modules."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from padiff.frameworks import torch_graphs
from padiff.frameworks.protocol import Enter, Exit, Fail, Handle
from padiff.frameworks.torch_compiled import AroundCompiled


def attached(
    modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail, *, in_backward: bool = False
) -> Iterator[Handle]:
    """Have ``enter``, and then ``leave`` or ``fail``, called around every call of the modules; ``in_backward`` means
    those that backward makes, and no others."""

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # What a compiler takes in with the code around must not become part of it.
        if torch.compiler.is_compiling() or _recomputing() is not in_backward:
            return None
        with torch._C.DisableTorchFunction():  # the write watch need not see that a shape is read
            return enter(module, args, kwargs)

    def after(module: Any, args: Any, output: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        if output is None and sys.exc_info()[1] is not None:
            fail(module)
            return None
        if _recomputing() is not in_backward:
            return None
        with torch._C.DisableTorchFunction():
            return leave(module, output)

    modules = list(modules)
    yield from torch_graphs.in_parts(modules)
    for module in modules:
        if getattr(module, "_compiled_call_impl", None) is not None:
            yield AroundCompiled(module, before, after)
            continue
        # Before the user's own: what those change of what a module is given is the module's doing. And not by the
        # module's own methods: a script refuses, though it calls hooks.
        yield torch.nn.Module.register_forward_pre_hook(module, before, with_kwargs=True, prepend=True)
        yield torch.nn.Module.register_forward_hook(module, after, always_call=True)


def _recomputing() -> bool:
    """Inside backward: a forward seen there is a checkpoint's second one."""
    return bool(torch._C._current_graph_task_id() != -1)
