"""Settings that differ and made no difference: an eps beside numbers that are large, a dropout in evaluation."""

from __future__ import annotations

from collections.abc import Iterable

from padiff.diagnose.causes import differing_settings
from padiff.engine.job import Job
from padiff.frameworks.settings import settings_of
from padiff.frameworks.tree import LiveTree
from padiff.records import Call
from padiff.report.words import count

_HIDE = ("eps", "p", "momentum")
"""What may differ and not be seen, because of the numbers at hand or of the mode that the models are in."""


def hidden_settings(job: Job, pairs: Iterable[tuple[Call, Call]]) -> list[str]:
    """What is worth telling though nothing differs, a line for each pair of values."""
    found: dict[tuple[str, float, float], dict[str, None]] = {}
    seen: set[tuple[int, int]] = set()
    for base, raw in pairs:
        if (base.node, raw.node) in seen or _inner(job.base, base) or _inner(job.raw, raw):
            continue
        seen.add((base.node, raw.node))
        one, other = (
            settings_of(live.adapter, live.modules[node]) for live, node in ((job.base, base.node), (job.raw, raw.node))
        )
        one = {name: one[name] for name in _HIDE if isinstance(one.get(name), (int, float))}
        for name, mine, theirs in differing_settings(one, other):
            if isinstance(theirs, (int, float)):
                found.setdefault((name, mine, theirs), {})[raw.path] = None
    return [
        f"{name} differs and made no difference here: {_number(mine)} in base, {_number(theirs)} in raw, in "
        + _places(list(paths))
        for (name, mine, theirs), paths in found.items()
    ]


def _inner(live: LiveTree, call: Call) -> bool:
    return bool(live.tree.nodes[call.node].children)


def _number(value: float) -> str:
    return f"{value:g}"


def _places(paths: list[str]) -> str:
    first = paths[0] or "the model itself"
    return first if len(paths) == 1 else f"{count(len(paths), 'module')}, {first} first"
