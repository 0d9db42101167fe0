"""Whether what waits for Python's cycle collector may go on waiting.

Paddle 3.3.1 can crash when it loads a program, or makes one for training, while parts of an older one that nobody holds
any more wait to be collected. Whoever has dealt with one says so, and from then on nobody makes it wait.
"""

from __future__ import annotations

_wait = True


def may_wait() -> bool:
    """Whether the collector may be kept from what there is."""
    return _wait


def must_go() -> None:
    """For the rest of the process, garbage goes when Python sees fit."""
    global _wait
    _wait = False
