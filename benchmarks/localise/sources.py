"""The pairs that bugs are planted in: those that need only the frameworks, and the zoo's where it is installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.localise.stage import Models, Source

HEAVY = ("vgg11: torchvision", "densenet121")
"""Take seconds for each comparison and add nothing that smaller ones lack."""


def plain_sources() -> Iterator[Source]:
    """Twins written in both frameworks: run in the plain environment."""
    from tests.twins import PAIRS

    from benchmarks.localise import decoder

    for base, raw in PAIRS:
        yield Source(f"twins: {base}, {raw}", partial(_twins, base, raw))
    for base, raw in PAIRS:
        yield Source(f"decoder: {base}, {raw}", partial(decoder.models, base, raw))
    yield Source("attention: torch, paddle", partial(_own, "transformer"))
    yield Source("residual CNN: torch, paddle", partial(_own, "cnn"))


def zoo_sources() -> Iterator[Source]:
    """The zoo's equal pairs whose libraries are there, small and at real depth."""
    from tests.zoo import libraries
    from tests.zoo.pairs import PAIRS

    for pair in PAIRS:
        if pair.really_different_at is not None or pair.name.startswith(HEAVY):
            continue
        with contextlib.redirect_stdout(io.StringIO()):
            if any(libraries.missing(library) for library in pair.libraries):
                continue
        for small in (True, False) if pair.deep else (False,):
            name = pair.name + (", small" if small else ", deep" if pair.deep else "")
            yield Source(name, partial(_silently, pair.build, small), pair.phase, pair.whole)


def sources(names: list[str]) -> list[Source]:
    """All, or those whose name begins with one of the names."""
    found = [*plain_sources(), *zoo_sources()]
    return [source for source in found if not names or any(source.name.startswith(name) for name in names)]


def _silently(build: Any, small: bool) -> Models:
    with contextlib.redirect_stdout(io.StringIO()):
        found: Models = build(small)
    return found


def _twins(base: str, raw: str) -> Models:
    from tests.twins import batch, net

    return net(base), net(raw), batch()


def _own(kind: Any) -> Models:
    """The models whose cost is measured elsewhere, small."""
    from tests.zoo.prepare import calibrated, randomised

    from benchmarks.models import Case, build

    case = Case(kind, kind, 4, 24 if kind == "transformer" else 6, 2, 9 if kind == "transformer" else 20)
    pair = build(case)
    base, raw = pair.torch_model, pair.paddle_model
    if kind == "cnn":
        calibrated(base, (6, 3, 20, 20))
    else:
        randomised(base)
    base.eval()
    raw.eval()
    return base, raw, {"x": pair.torch_inputs["x"].numpy()}
