"""Print the outcome of every pair as the table of docs/zoo.md: `PYTHONWARNINGS=ignore .zoo/bin/python -m tests.zoo`."""

from __future__ import annotations

import contextlib
import gc
import io

import padiff
from padiff.errors import PadiffError
from tests.zoo import libraries
from tests.zoo.pairs import PAIRS, Pair


def outcome(pair: Pair) -> tuple[str, str]:
    """At real depth: how it ended, and how much of raw was compared."""
    base, raw, inputs = pair.build(False)
    try:
        result = padiff.compare(base, raw, inputs, phase=pair.phase)
    except PadiffError as error:
        return type(error).__name__, ""
    place = "" if result.divergence is None else f"parts at `{result.divergence.raw_path or '(model)'}`"
    shares = [result.coverage[share] for share in ("parameters", "outputs", "calls")]
    return "yes" if result.aligned else place or "no verdict", " · ".join(f"{share:.0%}" for share in shares)


def main() -> None:
    print("| pair | libraries | aligned | coverage | remark |\n|---|---|---|---|---|")
    for pair in PAIRS:
        if any(libraries.missing(library) for library in pair.libraries):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            aligned, coverage = outcome(pair)
        name, _, sides = pair.name.partition(": ")
        remarks = [pair.remark, *dict.fromkeys(f"not yet: {reason}" for reason in pair.fails.values())]
        print(f"| {name} | {sides} | {aligned} | {coverage} | {'; '.join(filter(None, remarks))} |", flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
