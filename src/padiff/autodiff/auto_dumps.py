"""The dumps that ``auto_diff`` leaves: at ``<dump_path>/auto_diff`` of each model that has a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from padiff.autodiff.dump_files import PARTS, check_owner, described_run
from padiff.autodiff.log import say
from padiff.autodiff.proxy import LiveProxy
from padiff.engine.captured.dumping import TraceWriter, ranks_here
from padiff.frameworks.tree import LiveTree

FOLDER = "auto_diff"


@contextmanager
def auto_dumps(base: LiveTree, raw: LiveTree) -> Iterator[tuple[TraceWriter | None, TraceWriter | None]]:
    """Writers of the dumps of both models, none for a plain model; whole when the block ends, gone when it raises."""
    if isinstance(base, LiveProxy) and isinstance(raw, LiveProxy) and base.dump_path == raw.dump_path:
        say(f"both models are named {base.tree.name}, so that no dumps are left: create_model takes a name")
        yield None, None
        return
    with ExitStack() as stack:
        writers: list[TraceWriter | None] = []
        for live in (base, raw):
            writer = _writer(live)
            writers.append(None if writer is None else stack.enter_context(writer))
        yield writers[0], writers[1]
    for role, live in (("base_model", base), ("raw_model", raw)):
        if isinstance(live, LiveProxy):
            say(f"dump of {role}: {auto_dump_place(live)}")


def auto_dump_place(live: LiveProxy) -> Path:
    rank, ranks = ranks_here(live.adapter)
    place = Path(live.dump_path) / FOLDER
    return place if ranks == 1 else place / f"rank_{rank}"


def _writer(live: LiveTree) -> TraceWriter | None:
    if not isinstance(live, LiveProxy) or live.run is None:
        return None
    place = auto_dump_place(live)
    check_owner(place, live.run)
    extra = described_run(live, live.lists.recorded(live) | {0}, PARTS, live.run)
    return TraceWriter(live, place, overwrite=True, extra=extra)
