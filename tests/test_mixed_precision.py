"""As models are trained: autocast, gradient scalers, master weights, gradients kept elsewhere."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from benchmarks.localise.counted import ALIGNED, DIVERGING, Runs, counting

import padiff
from padiff.align import same_thing
from tests.twins import FRAMEWORKS, after, batch, net, sgd, write


def wide(out: Any) -> Any:
    """A loss in single precision, however narrow the output is."""
    return ((out.float() if isinstance(out, torch.Tensor) else out.astype("float32")) ** 2).mean()


def autocast(model: Any, level: str = "O1") -> Any:
    """The model, which from now on computes in bfloat16 where its framework can."""
    inner = model.forward

    def forward(x: Any) -> Any:
        if isinstance(model, torch.nn.Module):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return inner(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # paddle says that a CPU without bfloat16 goes on in float32
            with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
                return inner(x)

    model.forward = forward
    return model


def place(result: padiff.Result) -> tuple[str, str] | None:
    return None if result.divergence is None else (result.divergence.raw_path, result.divergence.phase)


BUGS = {
    "none": (lambda raw: None, None),
    "forward": (lambda raw: after(raw.blocks[1].fc2, lambda out: out * 1.1), ("blocks.1.fc2", "forward")),
    "backward": (lambda raw: setattr(raw.blocks[1], "scale_gradient", True), ("blocks.1", "backward")),
    "between": (lambda raw: setattr(raw.blocks[2], "residual", False), ("blocks.2", "forward")),
}


@pytest.mark.parametrize(("base", "who"), [("torch", "raw"), ("paddle", "raw"), ("torch", "base"), ("torch", "both")])
@pytest.mark.parametrize("bug", BUGS)
def test_autocast_inside_the_model(base: str, bug: str, who: str) -> None:
    one, other = net(base), net("torch")
    plant, expected = BUGS[bug]
    plant(other)
    one = autocast(one) if who != "raw" else one
    other = autocast(other) if who != "base" else other
    result = padiff.compare(one, other, batch(), loss=wide)
    assert place(result) == expected, str(result)
    assert result.tolerance.narrow == 2.0**-7
    if expected is None:
        assert result.aligned
        verdicts = {one.outcome.verdict for one in result.comparisons}
        assert "different" not in verdicts
        if who != "both":
            assert "precision" in verdicts


@pytest.mark.parametrize("raw", FRAMEWORKS)
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("loss", [None, wide])
def test_autocast_takes_no_more_runs_than_allowed(raw: str, bug: str, loss: Any) -> None:
    """Raw's first forward, which ends at its first module, counts as a whole one."""
    one, other = net("torch"), net(raw)
    plant, expected = BUGS[bug]
    plant(other)
    with counting(one, autocast(other)) as runs:
        result = padiff.compare(one, other, batch(), loss=loss)
    assert place(result) == expected, str(result)
    assert within(runs, aligned=expected is None), runs.plain()


@pytest.mark.parametrize("side", ["base", "raw"])
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("loss", [None, wide])
def test_a_narrow_dtype_takes_no_more_runs_than_allowed(side: str, bug: str, loss: Any) -> None:
    """Both run backward in the second look only, which is taken in any case."""
    one, other = net("torch"), net("torch")
    plant, expected = BUGS[bug]
    plant(other)
    (one if side == "base" else other).to(torch.bfloat16)
    with counting(one, other) as runs:
        result = padiff.compare(one, other, batch(), loss=loss)
    assert place(result) == expected, str(result)
    assert within(runs, aligned=expected is None), runs.plain()
    phases = {one.phase for one in result.comparisons}
    assert {"forward", "backward", "gradient"} <= phases
    gradients = {(one.raw_path, one.name) for one in result.comparisons if one.phase == "gradient"}
    assert len(gradients) == len(list(other.parameters()))


@pytest.mark.parametrize("bug", BUGS)
def test_a_narrow_model_that_cannot_be_fed_runs_backward_by_itself(bug: str) -> None:
    one, other = net("torch"), net("torch").bfloat16()
    plant, expected = BUGS[bug]
    plant(other)
    seen: list[int] = []

    def check(module: Any, given: Any) -> None:
        seen.append(1)
        if len(seen) == 2:
            raise ValueError("once is enough")

    other.blocks[0].register_forward_pre_hook(check)
    result = padiff.compare(one, other, batch())
    assert result.aligned is (expected is None), str(result)
    assert any("could not be run on base's tensors" in note for note in result.notes)
    assert {"backward", "gradient"} <= {one.phase for one in result.comparisons}


def within(runs: Runs, *, aligned: bool) -> bool:
    """Whether no more was run than three plain runs of base and one of raw, or five and three, all told."""
    base, raw = runs.plain()
    most = ALIGNED if aligned else DIVERGING
    return base + raw <= sum(most) + 1e-9 and base <= most[0] + 1e-9


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_gradients_too_small_for_what_autocast_makes_them_in(bug: str, scale: float) -> None:
    """They come in float32, and were float16 on their way; what is left of them tells nothing of backward."""
    one, other = net("torch"), net("torch")
    plant, expected = BUGS[bug]
    plant(other)
    inner = other.forward

    def forward(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.float16):
            return inner(x)

    other.forward = forward
    result = padiff.compare(one, other, batch(), loss=lambda out: wide(out) * scale)
    lost = bug == "backward" and scale < 1.0
    assert place(result) == (None if lost else expected), str(result)


def test_autocast_that_begins_half_way_is_judged_by_its_dtype_too() -> None:
    one, other = net("torch"), net("torch")
    narrow = autocast(other.blocks[1]).forward
    other.blocks[1].forward = lambda x: narrow(x).float()
    after(other.blocks[2].fc2, lambda out: out * 1.1)
    result = padiff.compare(one, other, batch(), loss=wide)
    assert place(result) == ("blocks.2.fc2", "forward")
    assert result.tolerance.narrow == 2.0**-7


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("bug", ["none", "forward", "backward"])
def test_paddle_auto_cast(level: str, bug: str) -> None:
    one, other = net("torch"), net("paddle")
    plant, expected = BUGS[bug]
    plant(other)
    result = padiff.compare(one, autocast(other, level), batch(), loss=wide)
    assert place(result) == expected, str(result)


@pytest.mark.parametrize("raw", FRAMEWORKS)
def test_autocast_around_the_comparison(raw: str) -> None:
    one, other = net("torch"), net(raw)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert padiff.compare(one, other, batch(), loss=wide).aligned
        after(other.blocks[0].fc1, lambda out: out * 1.1)
        assert place(padiff.compare(one, other, batch(), loss=wide)) == ("blocks.0.fc1", "forward")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("base", "dtype"), [("torch", torch.bfloat16), ("paddle", torch.bfloat16), ("paddle", torch.float16)], ids=str
)
@pytest.mark.parametrize("bug", ["none", "forward", "backward"])
def test_a_narrow_model_on_inputs_given_once(base: str, bug: str, dtype: torch.dtype) -> None:
    """The inputs are base's; weights are rounded on their way, and so are the inputs."""
    one, other = net(base), net("torch").to(dtype)
    plant, expected = BUGS[bug]
    plant(other)
    result = padiff.compare(one, other, batch(), loss=wide)
    assert place(result) == expected, str(result)
    assert result.steps[0].raw.calls[0].inputs[0].value.shape == (7, 6)
    if expected is None:
        assert result.aligned
        assert any("precision" in note for note in result.notes)


class Norm(torch.nn.Module):
    """A norm as decoders have it: narrow numbers go in, wide ones are computed with, narrow ones come out."""

    def __init__(self, eps: float, factor: float) -> None:
        super().__init__()
        self.fc, self.out, self.eps, self.factor = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3), eps, factor

    def forward(self, x: Any) -> Any:
        hidden = self.fc(x)
        wide = hidden.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.eps)
        normal = wide.to(hidden.dtype)
        normal = normal * self.factor
        return self.out(normal)


@pytest.mark.parametrize(("narrow", "cast"), [(True, False), (False, True)], ids=["model", "autocast"])
@pytest.mark.parametrize(
    ("eps", "factor", "op", "line"),
    [
        (0.3, 1.0, "add", "wide = wide * torch.rsqrt(variance + self.eps)"),
        (1e-6, 1.2, "mul", "normal = normal * self.factor"),
        (1e-6, 1.01, "mul", "normal = normal * self.factor"),  # less than rounding may be, and all one way
    ],
)
def test_the_line_in_a_narrow_model(eps: float, factor: float, op: str, line: str, narrow: bool, cast: bool) -> None:
    """What goes in is not the same on both sides, but for rounding, and neither is what base hardly changes."""
    one, other = Norm(1e-6, 1.0), Norm(eps, factor)
    if narrow:
        other = other.to(torch.bfloat16)
    found = padiff.compare(one, autocast(other) if cast else other, batch(), loss=wide).divergence
    assert found is not None and found.op is not None and found.op.raw_line is not None
    assert (found.raw_path, found.phase) == ("", "forward")
    assert [same_thing(name) for name in (found.op.base, found.op.raw)] == [op, op]
    assert found.op.raw_line.text == line


def test_a_few_wide_layers_in_a_narrow_model() -> None:
    """As ``decorate`` does: norms keep float32."""
    one, other = net("torch"), net("torch").to(torch.bfloat16)
    for module in other.modules():
        if isinstance(module, (torch.nn.LayerNorm, torch.nn.BatchNorm1d)):
            module.float()
            module.register_forward_pre_hook(lambda _, args: (args[0].float(),))
            module.register_forward_hook(lambda _, __, out: out.to(torch.bfloat16))
    result = padiff.compare(one, other, batch(), loss=wide)
    assert result.aligned, str(result)


def test_auto_diff_copies_into_a_narrow_model(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = net("torch"), net("torch").to(torch.bfloat16)
    inputs = ({"x": batch()}, {"x": torch.from_numpy(batch()).bfloat16()})
    assert padiff.auto_diff(one, other, inputs, atol=0.1, rtol=0.1, loss_fns=[wide, wide])
    after(other.blocks[1].fc2, lambda out: out * 3)
    assert not padiff.auto_diff(one, other, inputs, atol=0.1, rtol=0.1, loss_fns=[wide, wide])
    assert "SUCCESS !!!" in capsys.readouterr().out


# ------------------------------------------------------------------ scaled losses


def scaled(model: Any, factor: float = 1024.0) -> tuple[Any, Any]:
    """A loss that goes through a scaler, and what steps with it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=factor)
    optimizer = sgd(model)

    def step() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return (lambda out: scaler.scale(wide(out))), step


def clipped(model: Any) -> Any:
    """Steps with clipped gradients, without a scaler."""
    optimizer = sgd(model)
    if isinstance(model, torch.nn.Module):

        def step() -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    else:

        def step() -> None:
            paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.clear_grad()

    return step


@pytest.mark.parametrize("base", FRAMEWORKS)
@pytest.mark.parametrize("bug", ["none", "forward", "backward"])
@pytest.mark.parametrize("side", ["raw", "base"])
def test_a_scaled_loss_is_unscaled(base: str, bug: str, side: str) -> None:
    one, other = net(base if side == "raw" else "torch"), net("torch" if side == "raw" else base)
    plant, expected = BUGS[bug]
    plant(other)
    loss, step = scaled(other if side == "raw" else one)
    losses = (wide, loss) if side == "raw" else (loss, wide)
    optimizers = (clipped(one), step) if side == "raw" else (step, clipped(other))
    result = padiff.compare(one, other, batch(), loss=losses, optimizers=optimizers, steps=2)
    assert place(result) == expected, str(result)
    assert result.aligned is (expected is None)
    if expected is None:
        assert {c.phase for c in result.comparisons} >= {"forward", "backward", "gradient", "weight"}
    assert torch.amp.GradScaler.scale.__module__ == "torch.amp.grad_scaler"


@pytest.fixture
def _scaler_of_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """paddle switches its scaler off where there is no accelerator; everything it does runs on a CPU as well."""
    place = SimpleNamespace(is_gpu_place=lambda: True)
    monkeypatch.setattr(paddle.amp.grad_scaler, "_dygraph_tracer", lambda: SimpleNamespace(_expected_place=place))


def scaled_by_paddle(model: Any) -> tuple[Any, Any]:
    """A loss that goes through paddle's scaler, and what steps with it."""
    scaler = paddle.amp.GradScaler(init_loss_scaling=2.0**14, use_dynamic_loss_scaling=False)
    optimizer = sgd(model)

    def step() -> None:
        scaler.unscale_(optimizer)
        paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()

    return (lambda out: scaler.scale(wide(out))), step


@pytest.mark.usefixtures("_scaler_of_any_place")
@pytest.mark.parametrize("base", FRAMEWORKS)
@pytest.mark.parametrize("bug", ["none", "forward", "backward"])
@pytest.mark.parametrize("side", ["raw", "base"])
def test_a_loss_that_paddle_scales(base: str, bug: str, side: str) -> None:
    one, other = net(base if side == "raw" else "paddle"), net("paddle" if side == "raw" else base)
    plant, expected = BUGS[bug]
    plant(other)
    loss, step = scaled_by_paddle(other if side == "raw" else one)
    losses = (wide, loss) if side == "raw" else (loss, wide)
    optimizers = (clipped(one), step) if side == "raw" else (step, clipped(other))
    result = padiff.compare(one, other, batch(), loss=losses, optimizers=optimizers, steps=2)
    assert place(result) == expected, str(result)
    assert result.aligned is (expected is None)
    assert paddle.amp.AmpScaler.scale.__module__ == "paddle.amp.grad_scaler"


@pytest.mark.usefixtures("_scaler_of_any_place")
def test_a_paddle_scale_that_is_never_taken_out_is_found() -> None:
    one, other = net("torch"), net("paddle")
    loss, _ = scaled_by_paddle(other)
    result = padiff.compare(one, other, batch(), loss=(wide, loss), optimizers=(sgd(one), sgd(other)))
    assert result.divergence is not None
    assert result.divergence.phase == "weight"


def test_a_scale_that_is_never_taken_out_is_found() -> None:
    one, other = net("torch"), net("torch")
    loss, _ = scaled(other)
    result = padiff.compare(one, other, batch(), loss=(wide, loss), optimizers=(sgd(one), sgd(other)))
    assert result.divergence is not None
    assert result.divergence.phase == "weight"


# ------------------------------------------------------------------ gradients and weights kept elsewhere


def with_main_grad(model: Any) -> None:
    """Gradients are added up in single precision beside the parameter, and taken off it."""

    def moved(parameter: Any) -> Any:
        def hook(gradient: Any) -> None:
            if isinstance(parameter, torch.Tensor):
                parameter.main_grad.add_(parameter.grad.float())
                parameter.grad = None
            elif parameter.main_grad is None:
                parameter.main_grad = gradient.astype("float32").clone()
            else:
                parameter.main_grad.add_(gradient.astype("float32"))

        return hook

    for parameter in model.parameters():
        if isinstance(parameter, torch.Tensor):
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(moved(parameter))
        elif not parameter.stop_gradient:
            parameter.main_grad = None
            parameter.register_hook(moved(parameter))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("bug", ["none", "backward"])
def test_main_grad(framework: str, bug: str) -> None:
    one, other = net("torch"), net(framework)
    plant, expected = BUGS[bug]
    plant(other)
    with_main_grad(other)
    result = padiff.compare(one, other, batch(), loss=wide)
    assert place(result) == expected, str(result)
    gradients = [c for c in result.comparisons if c.phase == "gradient"]
    assert len(gradients) == 36
    left = [parameter.main_grad for parameter in other.parameters() if hasattr(parameter, "main_grad")]
    assert all(main is None or not main.any() for main in left)


def test_master_weights() -> None:
    """An optimizer that keeps its weights in single precision, and the model a rounded copy."""
    one, other = net("torch"), net("torch")
    masters = [parameter.detach().clone().requires_grad_(True) for parameter in other.parameters()]
    other = other.to(torch.bfloat16)
    optimizer = torch.optim.SGD(masters, lr=0.05)

    def step() -> None:
        for master, parameter in zip(masters, other.parameters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        optimizer.step()
        for master, parameter in zip(masters, other.parameters(), strict=True):
            write(parameter, master.detach().numpy())
            parameter.grad = None

    result = padiff.compare(one, other, batch(), loss=wide, optimizers=(sgd(one, 0.05), step), steps=3)
    assert result.aligned, str(result)
    assert len(result.steps) == 3
    optimizer.param_groups[0]["lr"] = 0.5
    one = net("torch")
    for master, parameter in zip(masters, one.parameters(), strict=True):
        master.data.copy_(parameter.data)
    result = padiff.compare(one, other, batch(), loss=wide, optimizers=(sgd(one, 0.05), step), steps=3)
    assert result.divergence is not None
    assert result.divergence.phase == "weight"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_decorated_paddle_model(level: str) -> None:
    """On a CPU paddle leaves the dtypes alone; model, optimizer and master weights are decorated all the same."""
    one, other = net("torch"), net("paddle")
    adamw = paddle.optimizer.AdamW(0.01, parameters=other.parameters(), weight_decay=0.0, epsilon=1e-3)
    other, adamw = paddle.amp.decorate(other, adamw, level=level, dtype="bfloat16", master_weight=True)
    ours = torch.optim.AdamW(one.parameters(), lr=0.01, weight_decay=0.0, eps=1e-3)
    result = padiff.compare(one, autocast(other, level), batch(), loss=wide, optimizers=(ours, adamw), steps=2)
    assert result.aligned, str(result)
    assert sum(c.phase == "weight" for c in result.comparisons) >= 2 * 36


class Masked(torch.nn.Module):
    """Leaves out with the least number there is in its dtype, as transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attending()

    def forward(self, x: Any) -> Any:
        mask = torch.full((5, 5), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        return self.inner(x, mask)


class Attending(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = torch.nn.Linear(6, 6)

    def forward(self, x: Any, mask: Any) -> Any:
        return torch.softmax(x @ self.key(x).transpose(-1, -2) + mask, -1) @ x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_masks_of_the_least_number_of_each_dtype(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    inputs = ({"x": torch.from_numpy(x)}, {"x": torch.from_numpy(x).to(dtype)})
    assert padiff.auto_diff(Masked(), Masked().to(dtype), inputs, atol=0.05)
    assert "SUCCESS" in capsys.readouterr().out


class Positions(torch.nn.Module):
    """Returns what is added to scores, the mask in it, as T5 does for its next layers."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.table, self.factor = torch.nn.Parameter(torch.ones(5, 5).cumsum(1)), factor

    def forward(self, x: Any) -> Any:
        return self.table * self.factor + torch.full((5, 5), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)


class Placed(torch.nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.positions, self.inner = Positions(factor), Attending()

    def forward(self, x: Any) -> Any:
        return self.inner(x, self.positions(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scores_that_hold_the_least_number_of_each_dtype(dtype: torch.dtype) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    result = padiff.compare(Placed(), Placed().to(dtype), x, loss=wide)
    assert result.aligned, str(result)
    assert place(padiff.compare(Placed(), Placed(1.5).to(dtype), x, loss=wide)) == ("positions", "forward")


def test_running_statistics_that_are_nothing_but_for_rounding() -> None:
    """What follows a norm has no mean, until it is rounded to a narrow dtype."""
    first = [torch.nn.Conv2d(3, 8, 1, bias=False), torch.nn.BatchNorm2d(8)]
    one = torch.nn.Sequential(*first, torch.nn.Conv2d(8, 16, 1, bias=False), torch.nn.BatchNorm2d(16))
    x = np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype("float32")
    result = padiff.compare(one, copy.deepcopy(one).bfloat16(), x, loss=wide)
    assert result.aligned, str(result)


class Casting(torch.nn.Module):
    """One that casts a part of itself, or says that it does not."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.first, self.inner = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.forward = self.on if enabled else self.off

    def on(self, x: Any) -> Any:
        x = self.first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x)

    def off(self, x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.inner(self.first(x))


@pytest.mark.parametrize("enabled", [True, False])
def test_what_the_code_of_a_part_says_of_autocast_is_read(enabled: bool) -> None:
    base, raw = (torch.nn.Sequential(torch.nn.Linear(8, 8), Casting(on)) for on in (False, enabled))
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    with counting(base, raw) as runs:
        result = padiff.compare(base, raw, x)
    assert result.aligned, str(result)
    assert within(runs, aligned=True), runs.plain()
    assert enabled or runs.plain() == (2.0, 1.0)
