"""``plan_weights``: where every tensor of raw comes from, to look at, change, save and carry out."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from padiff.engine.filling.matching import Matching, override
from padiff.engine.job import Job
from padiff.engine.pipeline import copy_weights
from padiff.errors import ArgumentError, WeightError
from padiff.records import Unmatched, WeightEntry, WeightPlan, WeightProblem
from padiff.weights.rules import Rule, entries_of
from padiff.weights.script import read_script, write_script

SURE = 0.95


class Plan:
    """Where every parameter and buffer of raw comes from. Prints as a table; nothing is written before ``apply``."""

    def __init__(self, job: Job, matching: Matching) -> None:
        self._job = job
        self._matching = matching

    @property
    def weight_plan(self) -> WeightPlan:
        return self._matching.plan

    @property
    def entries(self) -> tuple[WeightEntry, ...]:
        return self._matching.plan.entries

    @property
    def problems(self) -> tuple[WeightProblem, ...]:
        """What stands in the way; empty when the plan can be carried out."""
        return self._matching.plan.problems

    @property
    def unmatched(self) -> tuple[Unmatched, ...]:
        """Tensors of either side that have no partner and need none."""
        return self._matching.plan.unmatched

    @property
    def unsure(self) -> tuple[WeightEntry, ...]:
        """Entries that the evidence does not settle."""
        return tuple(entry for entry in self.entries if entry.confidence < SURE)

    def override(self, rules: Mapping[str, Rule]) -> Plan:
        """Put rules of the user's in the place of entries; returns the plan."""
        return self._with(entries_of(rules, self._job.base, self._job.raw))

    def apply(self) -> None:
        """Copy base's weights into raw: all of them, or none."""
        if self.problems:
            problem = self.problems[0]
            raise WeightError(problem.message, problem.hint)
        copy_weights(self._job, self._matching.plan)

    def save(self, path: str | Path) -> None:
        """Write a converter script that runs without padiff."""
        base, raw = self._job.base.tree, self._job.raw.tree
        if self.weight_plan.special:
            path = raw.nodes[self.weight_plan.special[0][1]].path
            raise ArgumentError(f"the plan fills {path!r} by a function (add_special_init), which a script cannot hold")
        write_script(Path(path), self.entries, f"{base.name} ({base.framework})", f"{raw.name} ({raw.framework})")

    def load(self, path: str | Path) -> Plan:
        """Take the entries of a saved script, as somebody may have edited it, in the place of this plan's.

        What the script has no line for is not filled.
        """
        known = {entry.path: entry for entry in self.entries}
        given = read_script(Path(path))
        entries = [replace(e, written=known[e.path].written) if e.path in known else e for e in given]
        self._with(entries)
        plan = self.weight_plan
        tensors = self._job.raw.tensors()
        filled = {id(tensors[entry.path]) for entry in entries}
        kept = [entry for entry in plan.entries if id(tensors[entry.path]) in filled]
        left = [entry for entry in plan.entries if id(tensors[entry.path]) not in filled]
        unmatched = [Unmatched("raw", entry.path, entry.role, f"{str(path)!r} has no line for it") for entry in left]
        changed = replace(plan, entries=tuple(kept), unmatched=(*plan.unmatched, *unmatched))
        self._matching = replace(self._matching, plan=changed)
        return self

    def _with(self, entries: Sequence[WeightEntry]) -> Plan:
        self._matching = override(self._job, self._matching, entries)
        return self

    def to_dict(self) -> dict[str, Any]:
        return self._matching.plan.to_dict()

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"Plan({len(self.entries)} entries, {len(self.unsure)} unsure, {len(self.problems)} problems)"

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        base, raw = self._job.base.tree, self._job.raw.tree
        table = Table(title=f"{base.name} ({base.framework}) into {raw.name} ({raw.framework})", title_justify="left")
        for name in ("raw", "shape", "from base", "evidence", ""):
            table.add_column(name, overflow="fold")
        for entry in self.entries:
            mark = "" if entry.confidence >= SURE else "unsure"
            if entry.alternatives:
                mark = f"unsure; or {' / '.join(entry.alternatives)}"
            table.add_row(entry.path, str(list(entry.shape)), _sources(entry), entry.evidence, mark)
        out = io.StringIO()
        console = Console(file=out, width=140, color_system=None)
        console.print(table)
        for one in self.unmatched:
            console.print(f"without partner: {one}", highlight=False)
        for problem in self.problems:
            console.print(f"in the way: {problem.message}", highlight=False)
        return out.getvalue().rstrip()


def _sources(entry: WeightEntry) -> str:
    if entry.function is not None:
        return getattr(entry.function, "__name__", "a function")
    texts = []
    for source in entry.sources[:4]:
        text = source.path
        if source.index is not None:
            text += f"[{source.index}]"
        if source.start is not None:
            text += f"[{source.start}:{source.stop}]"
        texts.append(text + (" turned" if source.permute else ""))
    more = len(entry.sources) - 4
    joined = " + ".join(texts) + (f" + {more} more" if more > 0 else "")
    return joined + (f", by {entry.heads} heads" if entry.heads else "") + (", stacked" if entry.stack else "")
