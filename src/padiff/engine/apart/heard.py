"""Random draws in dumps: base's as if it had just been listened to, and where raw's did not correspond."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints

from padiff.capture.draws import Listener
from padiff.engine.apart.replay import in_order
from padiff.records import Draw, DrawGap
from padiff.store import StepDump

REASONS = get_args(get_type_hints(DrawGap)["reason"])


def heard_in(step: StepDump) -> Listener:
    """Who would have listened to the step of a dump."""
    found = Listener()
    begun = ended = 0
    for call, moment in in_order(step.calls):
        if moment == "ends":
            ended += 1
            found.times[call.index] = (found.times[call.index][0], begun + ended)
        elif moment == "begins":
            begun = call.index + 1
            found.times[call.index] = (begun + ended, begun + ended)
            found.parents[call.index] = call.parent
    found.draws = [draw.load() for draw in step.draws]
    found.unseen = list(step.unseen)
    return found


def plain_gaps(gaps: Iterable[DrawGap]) -> list[dict[str, Any]]:
    """As JSON can say it."""
    held = [{name: value for name, value in vars(gap).items() if name != "stacks"} for gap in gaps]
    return [{**row, "keeps": list(row["keeps"])} for row in held]


def stored_gaps(step: StepDump) -> tuple[DrawGap, ...]:
    """Where the draws of a run along base's dump did not correspond to base's."""
    rows = step.extra.get("draw_gaps")
    return tuple(_gap(row) for row in rows if isinstance(row, Mapping)) if isinstance(rows, list) else ()


def _gap(row: Mapping[str, Any]) -> DrawGap:
    texts = {name: str(row.get(name, "")) for name in ("base_path", "raw_path", "base", "raw")}
    reason: Any = row.get("reason")
    keeps = row.get("keeps")
    known = [float(one) if isinstance(one, (int, float)) else None for one in keeps] if isinstance(keeps, list) else []
    return DrawGap(
        reason if reason in REASONS else "place",
        masked=row.get("masked") is True,
        covered=row.get("covered") is True,
        keeps=(known[0], known[1]) if len(known) == 2 else (None, None),
        stacks=((), ()),
        **texts,
    )


def replayed_in(step: StepDump) -> int | None:
    """How many of base's draws raw was given in this step; None where it drew for itself."""
    found = step.extra.get("replayed")
    return found if isinstance(found, int) else None


def own_draws(base: StepDump, raw: StepDump) -> str | None:
    """What to tell where both drew for themselves, and so other numbers."""
    if replayed_in(raw) is not None or not (base.draws or raw.draws):
        return None
    draw: Draw = (base.draws or raw.draws)[0].load()
    side, path = ("base" if base.draws else "raw"), draw.path or "(model)"
    return f"{side} {path} draws {draw}, and raw was not given base's random numbers"
