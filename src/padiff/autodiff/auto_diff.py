"""``auto_diff``: the documented door's main call."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from padiff.api import pair_of_losses, pair_of_optimizers
from padiff.autodiff.auto_dumps import auto_dumps
from padiff.autodiff.environment import skips_wrap_layers
from padiff.autodiff.failure import explain
from padiff.autodiff.layer_map import LayerMap, as_layer_map
from padiff.autodiff.log import count, say
from padiff.autodiff.options import Options, read_call
from padiff.autodiff.told import call_rules, weight_rules
from padiff.autodiff.weights import carry_out, roles_line, say_left_out
from padiff.capture.one_step import check_arguments
from padiff.engine.filling.left_out import without
from padiff.engine.filling.matching import match
from padiff.engine.inputs import fresh_arguments, pair_of_dicts
from padiff.engine.job import Job
from padiff.engine.pipeline import run_job
from padiff.engine.widths import with_widths
from padiff.records import StepComparison

COMPARED = {
    "forward": "forward stage",
    "loss": "loss",
    "backward": "backward stage",
    "gradient": "grads",
    "weight": "weights",
    "buffer": "buffers",
}


def auto_diff(*args: Any, **kwargs: Any) -> bool:
    """Run two models side by side; True when they agree, else False with the place in the log.

    ``auto_diff(base_model, raw_model, inputs, loss_fns=None, optimizers=None, **options)``, or the first generation's
    ``auto_diff(layer, module, example_inp, auto_weights=True, steps=1, options={}, layer_map={}, loss_fn=None,
    optimizer=None)``.
    """
    options = read_call(args, kwargs)
    layer_map = as_layer_map(options.layer_map)
    job, swapped = _job(options, layer_map)
    _say_options(options)
    if swapped:
        say("inputs: each set holds tensors of the other model's framework, so the two are used swapped")
    matching = match(job, run=True)
    plan = matching.plan
    if options.auto_init and plan.problems and matching.raised is not None:
        raise matching.raised
    if not options.auto_init:
        say(roles_line(job.base, job.raw, "no weights were overwritten (auto_init is False)"))
        say_left_out(plan)
    elif not carry_out(job.base, job.raw, job.rules, plan):
        say("FAILED !!!")
        return False
    rules = call_rules(job.rules, job.base, job.raw)
    kept = without(plan, job.base.tree, job.raw.tree, rules.base_skip, rules.raw_skip)
    job = replace(job, rules=rules)
    own_loss = options.loss_fns is not None

    def tell(step: StepComparison) -> None:
        _say_step(step, fed=options.single_step)

    try:
        with auto_dumps(job.base, job.raw) as dumps:
            result, _ = run_job(job, replace(matching, plan=kept), copied=options.auto_init, on_step=tell, dumps=dumps)
    except Exception as error:
        half = getattr(error, "padiff_result", None)
        if half is not None:  # the exception is the user's; what was found before it is for the log
            tell(half.steps[-1])
            explain(half.report(), whole=False, own_loss=own_loss)
            say("FAILED !!!")
        raise
    if result.replayed:
        say(f"{count(result.replayed, 'random draw')} of base_model replayed in raw_model (dropout, noise, samples)")
    if result.divergence is not None or result.unmatched or result.notes:  # else there is nothing to explain
        explain(result.report(), whole=job.steps == 1 and job.optimizers is None, own_loss=own_loss)
    say("SUCCESS !!!" if result.aligned else "FAILED !!!")
    return result.aligned


def _job(options: Options, layer_map: LayerMap) -> tuple[Job, bool]:
    """The call in base/raw order, and whether the inputs came the other way round."""
    base, raw = options.base, options.raw
    first_inputs, second_inputs, swapped = pair_of_dicts(options.inputs, options.first, options.second)
    base_inputs, raw_inputs = options.in_order((first_inputs, second_inputs))
    losses = (None, None) if options.loss_fns is None else options.in_order(options.loss_fns)
    optimizers = None if options.optimizers is None else options.in_order(options.optimizers)
    job = Job(
        base=base,
        raw=raw,
        arguments=fresh_arguments(base, raw, base_inputs, raw_inputs),
        losses=pair_of_losses(losses),
        optimizers=pair_of_optimizers(optimizers, base, raw),
        steps=options.steps,
        backward=options.diff_phase != "forward",
        tolerance=options.tolerance,
        rules=weight_rules(layer_map.rules(base, raw, skip_parameterless=skips_wrap_layers()), base, raw),
        single_step=options.diff_phase if options.single_step else None,
        ops=options.ops,
    )
    for live, side, arguments in zip((base, raw), ("base", "raw"), job.arguments(), strict=True):
        check_arguments(live, side, arguments)
    return with_widths(job), swapped


def _say_options(options: Options) -> None:
    tolerance = options.tolerance
    shown = {
        "atol": tolerance.atol,
        "rtol": tolerance.rtol,
        "compare_mode": tolerance.mode,
        "diff_phase": options.diff_phase,
        "single_step": options.single_step,
        "steps": options.steps,
        "auto_init": options.auto_init,
        "use_loss": options.loss_fns is not None,
        "use_opt": options.optimizers is not None,
    }
    say("Your options:", "{", *(f"  {name}: `{value}`" for name, value in shown.items()), "}")
    say(*options.notes)


def _say_step(step: StepComparison, *, fed: bool) -> None:
    """Said as soon as a step is done: a long run is read while it goes on.

    Where raw's layers are ``fed`` base's tensors the model's own output is base's, and that of each layer tells.
    """
    say(f"================= Train Step {step.step} =================")
    returned = [c for c in step.comparisons if c.role == "output" and c.phase == "forward"]
    outcomes = [c.outcome for c in returned if fed or c.raw_path == ""]
    numbers = [one.numbers.max_abs for one in outcomes if one.numbers is not None]
    if any(one.reason == "nonfinite" for one in outcomes):
        numbers = [math.nan]  # what is finite says nothing about what is not
    if numbers:
        say(f"Max elementwise output diff is {max(numbers)}")
    for name, text in COMPARED.items():
        compared = [c for c in step.comparisons if ("loss" if c.role == "loss" else c.phase) == name]
        differing = sum(not c.agrees for c in compared)
        if compared:
            say(f"{text} compared. ({count(len(compared), 'tensor')}{f', {differing} differ' if differing else ''})")
