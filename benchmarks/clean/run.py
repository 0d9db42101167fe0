"""One clean comparison after the other."""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import padiff
from benchmarks.clean.variants import VARIANTS, Variant, other_inputs
from benchmarks.localise.counted import Runs, counting
from benchmarks.localise.either import is_floating, tensors_in
from benchmarks.localise.sources import sources
from benchmarks.localise.stage import Models, Source, arguments, quiet

Ended = Literal["aligned", "false alarm", "error", "could not run"]
"""An error counts as a false alarm: the models run by themselves."""


@dataclass(frozen=True)
class Comparison:
    """Of two whole models that compute the same."""

    pair: str
    variant: str
    seed: int
    ended: Ended
    worst: float | None
    """The largest deviation seen, as a part of what was allowed."""
    tensors: int
    """How many were compared."""
    said: str
    seconds: float
    runs: tuple[float, float] = (0.0, 0.0)
    """What it took of base and of raw, in plain runs."""


def comparisons(pairs: Sequence[str], variants: Sequence[str], count: int, seed: int) -> Iterator[Comparison]:
    """Every pair in every state, then all again with other numbers, until there are enough."""
    wanted = [one for one in VARIANTS if not variants or any(one.name.startswith(name) for name in variants)]
    found = sources(list(pairs))
    done = 0
    hopeless: set[tuple[str, str]] = set()
    while wanted and found and done < count:
        before = done
        for source in found:
            for variant in wanted:
                if done >= count:
                    return
                if (source.name, variant.name) in hopeless:
                    continue
                one = compared(source, variant, seed)
                if one.ended == "could not run":
                    hopeless.add((source.name, variant.name))
                else:
                    done += 1
                yield one
            gc.collect()
        if done == before:
            return
        seed += 1


def compared(source: Source, variant: Variant, seed: int) -> Comparison:
    """One pair in one state, built anew."""
    start = time.perf_counter()
    worst, tensors, runs = None, 0, Runs()
    with quiet():
        try:
            base, raw, inputs = _built(source, variant, seed)
            with counting(base, raw) as runs:
                result: Any = padiff.compare(base, raw, inputs, phase=source.phase)
        except Exception as error:  # a dtype that a kernel lacks is the framework's affair
            ended: Ended = "error" if _runs(source, variant, seed) else "could not run"
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            worst, tensors = _worst(result), len(result.comparisons)
            ended = "aligned" if result.aligned else "false alarm"
            said = "" if result.aligned else _words(result)
    seconds = time.perf_counter() - start
    return Comparison(source.name, variant.name, seed, ended, worst, tensors, said, seconds, runs.plain())


def _built(source: Source, variant: Variant, seed: int) -> Models:
    generator = np.random.default_rng(zlib.crc32(f"{source.name} {variant.name} {seed}".encode()))
    models = source.build()
    if seed:
        models = other_inputs(models, generator)
    return variant.change(models, generator)


def _runs(source: Source, variant: Variant, seed: int) -> bool:
    """Whether both models run by themselves, forward and backward."""
    try:
        base, raw, inputs = _built(source, variant, seed)
        for side, model in enumerate((base, raw)):
            args, kwargs = arguments(inputs, side, model)
            outputs = [tensor for tensor in tensors_in(model(*args, **kwargs)) if is_floating(tensor)]
            if source.phase == "both":
                outputs[0].mean().backward()
    except Exception:  # whatever a framework raises
        return False
    return True


def _words(result: Any) -> str:
    return "no divergence named" if result.divergence is None else str(result.divergence).splitlines()[0]


def _worst(result: Any) -> float | None:
    """Of the tensors that agree: a mask of another make differs in an aligned pair, too."""
    agreeing = (comparison.outcome for comparison in result.comparisons if comparison.agrees)
    return max((ratio for outcome in agreeing if (ratio := _ratio(outcome)) is not None), default=None)


def _ratio(outcome: Any) -> float | None:
    """Deviation over what was allowed, where both are numbers."""
    told = getattr(outcome, "ratio", None)
    if told is not None:
        return float(told)
    if outcome.numbers is None or not outcome.allowed:
        return None
    return float(outcome.numbers.rmse / outcome.allowed)
