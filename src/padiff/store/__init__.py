"""Traces on disk: written while a model runs, read lazily, never unpickled. The format is docs/dump-format.md."""

from padiff.store.draws import StoredDraw
from padiff.store.facts import Facts
from padiff.store.nested import Opaque
from padiff.store.paths import folder_given
from padiff.store.places import dumps_below, place
from padiff.store.reader import Dump, StepDump
from padiff.store.statistics import Gap, Stats, gap, statistics
from padiff.store.step_writer import Seen, StepWriter
from padiff.store.steps import Borders
from padiff.store.values import LostValue, StoredValue
from padiff.store.writer import DumpWriter, Kind

__all__ = [
    "Borders",
    "Dump",
    "DumpWriter",
    "Facts",
    "Gap",
    "Kind",
    "LostValue",
    "Opaque",
    "Seen",
    "Stats",
    "StepDump",
    "StepWriter",
    "StoredDraw",
    "StoredValue",
    "dumps_below",
    "folder_given",
    "gap",
    "place",
    "statistics",
]
