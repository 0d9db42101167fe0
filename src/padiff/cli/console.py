"""What commands print, and what becomes of it when nobody reads on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def hush() -> None:
    """Nothing that is still to be printed goes anywhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def printing() -> Iterator[None]:
    """Inside, whoever reads what is printed may stop: what was found out stays, and so does the exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    except SystemExit:  # what rich makes of the same
        hush()
