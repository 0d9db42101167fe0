"""The native door to dumps: record here, compare there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from padiff.api import rules_of
from padiff.capture.ops import WantedOps
from padiff.compare.tolerance import as_tolerance
from padiff.engine.apart.alongside import Alongside
from padiff.engine.apart.apart import Apart
from padiff.engine.apart.folders import compare_folders
from padiff.engine.apart.stored import stored_tree
from padiff.engine.captured.capturing import Capture
from padiff.engine.captured.selecting import wanted_nodes, wanted_steps
from padiff.engine.result import Result
from padiff.engine.widths import with_width
from padiff.errors import ArgumentError
from padiff.frameworks import adapter_of_model, adapter_of_optimizer, module_tree
from padiff.frameworks.tree import LiveTree
from padiff.records import Calibration, Tolerance
from padiff.report.progress import stages
from padiff.store import Dump, Kind, folder_given


def capture(
    model: Any,
    to: str | Path,
    *,
    optimizer: Any = None,
    steps: int | Iterable[int] | None = None,
    every: int = 1,
    only: Iterable[str] | None = None,
    level: Literal["module", "op"] = "module",
    kind: Kind = "full",
    overwrite: bool = False,
    calibrate: bool | None = None,
    base: str | Path | None = None,
    weights: Literal["copy", "keep"] | None = None,
    inputs: Literal["copy", "keep"] | None = None,
    sync: bool = False,
    randomness: Literal["replay", "own"] = "replay",
    rules: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Capture:
    """Record what ``model`` does inside the block into the dump ``to``, whoever runs it::

        with padiff.capture(model, to="run_a", optimizer=optimizer, every=100):
            train(model, optimizer)

    A step begins with a call of the model and is over when the model is called again after backward, or with
    ``optimizer`` after that has stepped. Calls from which no backward can start (``no_grad``, evaluation mode,
    ``generate``) are a step each. ``steps`` says how many are dumped, or which; ``every`` takes one of so many;
    ``only`` names the modules whose tensors are kept, with all inside them. ``level="op"`` records the functions and
    operators that modules' own code calls as well, so that a comparison can name the op and its line.

    ``kind``: ``"full"`` keeps whole tensors, ``"stats"`` a few hundred bytes of each, ``"hash"`` enough to tell whether
    two are equal bit by bit. ``calibrate`` runs dumped steps once more, shaken, so that a comparison knows what is
    rounding; False never runs the model but when you do. With several processes it must be asked for, in all of them:
    models that talk to each other run again together.

    With ``base``, the dump of another run, this one goes along with it: the model is filled with base's weights and
    called with base's inputs, unless ``weights`` or ``inputs`` is ``"keep"``, and ``sync=True`` feeds every module what
    base's was fed, so that each is judged by itself. What base drew at random (masks of dropout, noise) is in its dump,
    and the model is given it in place of its own draws; ``randomness="own"`` neither records nor replays. ``rules`` are
    those of ``compare``. The steps are base's then, unless said otherwise.

    The dump is there when the block ends, whole. Where the block raises, there is none.
    """
    if level not in ("module", "op"):
        raise ArgumentError(f"level is {level!r}, expected 'module' or 'op'")
    to = folder_given(to, "to")
    live = module_tree(adapter_of_model(model, "model"), model)
    if randomness not in ("replay", "own"):
        raise ArgumentError(f"randomness is {randomness!r}, expected 'replay' or 'own'")
    along = _alongside(live, base, weights, inputs, sync, randomness, rules)
    if along is not None and steps is None and every == 1:
        steps = sorted(along.steps)
    return Capture(
        live,
        to,
        wanted=wanted_steps(steps, every),
        optimizer=_checked(optimizer, live),
        only=wanted_nodes(only, live.tree),
        ops=WantedOps(options=True) if level == "op" else None,
        kind=kind,
        overwrite=overwrite,
        calibrate=calibrate,
        alongside=along,
        randomness=randomness,
        progress=progress,
    )


def _alongside(
    live: LiveTree,
    base: Any,
    weights: Any,
    inputs: Any,
    sync: bool,
    randomness: Literal["replay", "own"],
    rules: Any,
) -> Alongside | None:
    for name, value in (("weights", weights), ("inputs", inputs)):
        if value not in (None, "copy", "keep"):
            raise ArgumentError(f"{name} is {value!r}, expected 'copy' or 'keep'")
        if value == "copy" and base is None:
            raise ArgumentError(f'{name} is "copy", but base is None: there is nothing to copy from', 'base="run_a"')
    if base is None:
        if sync or rules is not None:
            raise ArgumentError(f"{'sync' if sync else 'rules'} is given, but base is None", 'base="run_a"')
        return None
    dump = Dump.open(folder_given(base, "base"))
    stored = stored_tree(dump)
    tolerance = with_width(Tolerance(mode="auto"), stored, live)
    found = rules_of(rules, stored, live)
    copied = weights != "keep", inputs != "keep"
    return Alongside(
        dump, live, tolerance, found, weights=copied[0], inputs=copied[1], sync=sync, randomness=randomness
    )


def load(path: str | Path) -> Dump:
    """The dump in a folder. Nothing but its index is read until it is asked for; tensors stay on disk."""
    return Dump.open(folder_given(path, "path"))


def _checked(optimizer: Any, live: LiveTree) -> Any:
    if optimizer is None:
        return None
    adapter = adapter_of_optimizer(optimizer)
    if adapter is None or adapter.name != live.adapter.name:
        what = f"a {adapter.name} optimizer" if adapter is not None else f"a {type(optimizer).__name__}"
        raise ArgumentError(
            f"optimizer is {what}, expected a {live.adapter.name} optimizer, as the model is",
            "leave it out where there is none: then a step is over when backward was run",
        )
    return optimizer


def compare_dumps(
    base: str | Path,
    raw: str | Path,
    *,
    tolerance: str | tuple[float, float] | Calibration | Tolerance = "auto",
    rules: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> Result:
    """Say whether two models that ran apart computed the same, and if not, where they part; nothing is run.

    ``base`` and ``raw`` are dumps, or folders of ``rank_<r>`` or ``step_<n>`` that hold dumps. What only one of them
    holds is a difference. ``tolerance`` and ``rules`` are those of ``compare``; ``"auto"`` goes by what rounding did to
    base when it was captured.
    """
    wanted = as_tolerance(tolerance)
    base, raw = folder_given(base, "base"), folder_given(raw, "raw")
    with stages(progress) as shown:
        shown.now("reading dumps")

        def pair(one: Dump, other: Dump) -> Apart:
            return Apart(one, other, wanted, rules, rules_of, with_width)

        return compare_folders(base, raw, pair, shown)
