"""What is hung around calls of paddle's layers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import paddle

from padiff.frameworks.paddle_builtins import Unseen
from padiff.frameworks.protocol import Enter, Exit, Fail, Handle


def attached(modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterator[Handle]:
    """Have ``enter``, and then ``leave`` or ``fail``, called around every call of the modules."""

    def before(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if not paddle.in_dynamic_mode():  # the code around is being compiled
            return None
        with Unseen():
            return enter(module, tuple(args), kwargs)

    def after(module: Any, args: Any, output: Any) -> Any:
        if output is None and sys.exc_info()[1] is not None:
            fail(module)
            return None
        if not paddle.in_dynamic_mode():
            return None
        with Unseen():
            return leave(module, output)

    for module in modules:
        # Before the user's own: what those change of what a module is given is the module's doing.
        yield module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        yield module.register_forward_post_hook(after, always_call=True)
