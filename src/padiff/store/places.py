"""Where the dumps of many steps and ranks lie when each has a folder of its own: ``<root>/step_<n>/rank_<r>``."""

from __future__ import annotations

import re
from pathlib import Path

from padiff.errors import DumpError
from padiff.store.files import INDEX, MADE_ANEW, explained, is_ours

_STEP = re.compile(r"step_(0|[1-9]\d{0,17})\Z", re.ASCII)
_RANK = re.compile(r"rank_(0|[1-9]\d{0,17})\Z", re.ASCII)


def place(root: str | Path, step: int, rank: int = 0) -> Path:
    """Where the dump of one step and rank belongs."""
    return Path(root) / f"step_{step}" / f"rank_{rank}"


def dumps_below(root: str | Path) -> dict[tuple[int | None, int | None], Path]:
    """(step, rank) to the dump's folder, in rising order, whether ``root`` holds steps, ranks, or is a dump itself.

    None stands for what the place does not say.
    """
    folder = Path(root)
    with explained(f"cannot read {folder}"):
        if not folder.is_dir():
            told = f"{folder} is a file; a dump is a folder" if folder.exists() else f"there is no folder {folder}"
            raise DumpError(told, "name the folder that padiff.capture or try_dump wrote")
        if (folder / INDEX).exists():
            return {(None, None): folder}
        found: dict[tuple[int | None, int | None], Path] = {}
        for step, inner in _numbered(folder, _STEP):
            ranks = _numbered(inner, _RANK)
            if not ranks:
                found[step, None] = inner
            found.update({(step, rank): path for rank, path in ranks})
        found.update({(None, rank): path for rank, path in _numbered(folder, _RANK)})
    if not found:
        if any(is_ours(entry.name) for entry in folder.iterdir()):
            raise DumpError(f"the dump {folder} is half-written or torn apart: {INDEX} is missing", MADE_ANEW)
        raise DumpError(
            f"{folder} holds no dump, and no folders step_<n> or rank_<r>", "name the folder that holds index.json"
        )
    return found


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    matches = ((pattern.match(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)
