"""Functions with a backward of their own (torch's ``Function``, paddle's ``PyLayer``): each seen as one op.

Their forward runs with gradients off, so nothing inside is followed; what comes out is, by the function's own rule.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from padiff.frameworks import Adapter
from padiff.frameworks.patches import replaced

BACKWARD = "backward"
"""Under this name such an op tells where its backward is written."""

Whole = Callable[[str, Callable[..., Any], str], Callable[..., Any]]
"""Makes of a function one that is seen as one op, given its name and where its backward is."""


@contextmanager
def watched_own_functions(adapter: Adapter, whole: Whole) -> Iterator[None]:
    """Inside, what this thread calls of such functions goes through what ``whole`` makes of each; not the framework's
    own, such as a checkpoint's."""
    owner: type | None = getattr(adapter, "function_type", None)
    if owner is None:
        yield
        return
    thread = threading.get_ident()

    def wrap(held: Any) -> Any:
        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            run = held.__get__(None, cls)
            framework = cls.__module__.partition(".")[0] == adapter.name
            if framework or threading.get_ident() != thread:
                return run(*args, **kwargs)
            return whole(f"{cls.__qualname__.rpartition('<locals>.')[2]}.apply", run, _place(cls))(*args, **kwargs)

        return classmethod(apply)

    with replaced([(owner, "apply", wrap)]):
        yield


def _place(cls: Any) -> str:
    """File and line of a function's backward."""
    code = getattr(inspect.unwrap(getattr(cls, "backward", cls)), "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"
