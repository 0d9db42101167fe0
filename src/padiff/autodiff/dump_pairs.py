"""Two folders of dumps: which dump of the one belongs to which of the other, and what one has alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padiff.autodiff.dump_files import parts_of
from padiff.autodiff.mapped_layers import paired
from padiff.errors import ArgumentError, DumpError
from padiff.records import Rules
from padiff.store import Dump, dumps_below

Key = tuple[int | None, int | None]
"""Step and rank, as far as folders say."""
WRITTEN_BY = {
    "report": "try_dump and dump_report write it",
    "weights": "try_dump, dump_params and dump_weights write them",
    "grads": "try_dump, dump_params and dump_grads write them",
}


@dataclass(frozen=True)
class DumpPairs:
    """Dumps of the same step and rank."""

    pairs: tuple[tuple[str, Path, Path], ...]
    """What the folders call them, ``step_0/rank_1``, and where they are."""
    alone: tuple[str, ...]
    """In words: what only one of the folders has."""


def dump_pairs(path_0: Any, path_1: Any) -> DumpPairs:
    """Pair the dumps below two folders; two single dumps are a pair, whatever they are called."""
    mine, theirs = (_dumps(name, path) for name, path in (("path_0", path_0), ("path_1", path_1)))
    if len(mine) == len(theirs) == 1:
        (key, one), (_, other) = next(iter(mine.items())), next(iter(theirs.items()))
        return DumpPairs(((_label(key), one, other),), ())
    pairs = tuple((_label(key), one, theirs[key]) for key, one in mine.items() if key in theirs)
    alone = [*_alone(mine, theirs, path_0), *_alone(theirs, mine, path_1)]
    return DumpPairs(pairs, tuple(alone))


class RunsSeen:
    """Who wrote the dumps of a folder: what an earlier, longer run left there looks like steps of the last one."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, str], dict[str, str]] = {}

    def see(self, path: Any, label: str, dump: Dump) -> None:
        run = dump.extra.get("run")
        if isinstance(run, str):
            rank = label.rpartition("/")[2]
            self._labels.setdefault((os.fspath(path), rank), {}).setdefault(run, label)

    def notes(self) -> list[str]:
        """In words: folders that hold steps of several runs, and where each begins."""
        return [
            f"{path} holds steps of {len(labels)} runs, which begin at {', '.join(labels.values())}: "
            "an earlier one may have left some there"
            for (path, _), labels in self._labels.items()
            if len(labels) > 1
        ]


def check_parts(dump: Dump, part: str) -> None:
    """Raise unless a dump holds what is to be compared."""
    if part not in parts_of(dump):
        held = ", ".join(sorted(parts_of(dump))) or "nothing"
        raise DumpError(f"the dump {dump.path} holds no {part}, only {held}", WRITTEN_BY[part])


def mapped_rules(base: Dump, raw: Dump) -> Rules:
    """Layers that belong together because both models' maps say so."""
    (ours, chosen), (theirs, also) = _mapped(base), _mapped(raw)
    if not ours and not theirs:
        return Rules()
    return Rules(pairs=paired(ours, theirs, chosen=chosen and also))


def _mapped(dump: Dump) -> tuple[list[str], bool]:
    known = dump.extra.get("layer_map", {"layers": [], "chosen": False})
    paths = {node.path for node in dump.tree.nodes}
    layers = known.get("layers") if isinstance(known, dict) else None
    if not isinstance(layers, list) or any(layer not in paths for layer in layers):
        raise DumpError(f"the dump {dump.path} has a layer map that does not fit its model")
    return layers, bool(known.get("chosen"))


def _dumps(name: str, path: Any) -> dict[Key, Path]:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise ArgumentError(f"{name} is {path!r}, expected the path of a dump, or of a folder of dumps")
    found = dumps_below(os.fspath(path))
    # A step without ranks is the same as one whose only rank is 0.
    return {(step, 0 if rank is None and step is not None else rank): place for (step, rank), place in found.items()}


def _alone(mine: dict[Key, Path], theirs: dict[Key, Path], path: Any) -> list[str]:
    steps = {step for step, _ in theirs}
    names: list[str] = []
    for key in mine:
        if key in theirs:
            continue
        whole = key[0] is not None and key[0] not in steps
        names.append(f"step_{key[0]}" if whole else _label(key) or "a dump without step and rank")
    return [f"only {os.fspath(path)} has {name}" for name in dict.fromkeys(names)]


def _label(key: Key) -> str:
    step, rank = key
    return "/".join([f"step_{step}"] * (step is not None) + [f"rank_{rank}"] * (rank is not None))
