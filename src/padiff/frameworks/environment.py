"""Where and how a model runs: device, threads, precision, each under one name, so that two sides can be compared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from padiff.frameworks.protocol import Adapter


def environment_of(adapter: Adapter, model: Any) -> dict[str, str]:
    """The adapter's word; where it has none, what every adapter can say."""
    own = getattr(adapter, "environment", None)
    if own is not None:
        found: dict[str, str] = own(model)
        return found
    framework = sys.modules.get(adapter.name)
    return facts(version=lambda: getattr(framework, "__version__", None), device=lambda: adapter.device_of(model))


def facts(**questions: Callable[[], Any]) -> dict[str, str]:
    """Question to answer, in words; one that a framework of another version cannot answer is left out.

    Underscores in a name are spaces. None is no answer; True and False are ``on`` and ``off``.
    """
    found: dict[str, str] = {}
    for name, ask in questions.items():
        try:
            answer = ask()
        except Exception:  # a framework's own, about a setting that only describes the run
            continue
        if answer is not None and answer != "":
            found[name.replace("_", " ")] = ("on" if answer else "off") if isinstance(answer, bool) else str(answer)
    return found


def listed(names: Any) -> str:
    """Each once, in order."""
    return ", ".join(dict.fromkeys(str(name) for name in names))
