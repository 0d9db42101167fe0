"""One convolution and its norm here, several with theirs there: stretches of kernels, norms, tables and their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
import torch

import padiff

X = np.random.default_rng(0).normal(size=(2, 6, 5, 4)).astype("float32")
F = paddle.nn.functional


class TConv(torch.nn.Sequential):
    def __init__(self, given: int, made: int, kernel: int = 1, groups: int = 1) -> None:
        super().__init__(
            torch.nn.Conv2d(given, made, kernel, padding=kernel // 2, groups=groups, bias=False),
            torch.nn.BatchNorm2d(made),
            torch.nn.SiLU(),
        )
        for norm in self[1].parameters():
            torch.nn.init.normal_(norm)


class Whole(torch.nn.Module):
    """One convolution whose channels are then cut, as in C2f."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.cv1, self.cv2 = TConv(6, 8), TConv(8 + 4 * depth, 6)
        self.m = torch.nn.ModuleList(TConv(4, 4, 3) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        parts = list(self.cv1(x).chunk(2, 1))
        for block in self.m:
            parts.append(parts[-1] + block(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


class PConv(paddle.nn.Layer):
    def __init__(self, given: int, made: int, kernel: int = 1) -> None:
        super().__init__()
        self.norm = paddle.nn.BatchNorm2D(made)
        self.conv = paddle.nn.Conv2D(given, made, kernel, padding=kernel // 2, bias_attr=False)
        self.bug = ""

    def forward(self, x: Any) -> Any:
        x = self.norm(self.conv(x))
        return F.relu(x) if self.bug == "act" else x * F.sigmoid(x)


class Parts(paddle.nn.Layer):
    """Two convolutions of half the channels, as in CSP; the one that goes round the blocks comes first, or last."""

    def __init__(self, depth: int = 1, late: bool = False) -> None:
        super().__init__()
        self.fuse = PConv(8 + 4 * depth, 6)
        self.main, self.short = PConv(6, 4), PConv(6, 4)
        self.blocks = paddle.nn.LayerList([PConv(4, 4, 3) for _ in range(depth)])
        self.late, self.bug = late, ""

    def forward(self, x: Any) -> Any:
        short = None if self.late else self.short(x)
        main = self.main(x)
        parts = [main]
        for block in self.blocks:
            parts.append(parts[-1] + block(parts[-1]))
        short = self.short(x) if short is None else short
        if self.bug == "scale":
            short = short * 1.1
        return self.fuse(paddle.concat([short, *parts], 1))


class Flat(paddle.nn.Layer):
    """The same in one module, and both kernels before their norms."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.bn3, self.bn4 = (paddle.nn.BatchNorm2D(n) for n in (4, 4, 4, 6))
        self.conv1, self.conv2 = (paddle.nn.Conv2D(6, 4, 1, bias_attr=False) for _ in range(2))
        self.conv3 = paddle.nn.Conv2D(4, 4, 3, padding=1, bias_attr=False)
        self.conv4 = paddle.nn.Conv2D(12, 6, 1, bias_attr=False)

    def forward(self, x: Any) -> Any:
        short, main = self.conv1(x), self.conv2(x)
        short, main = F.silu(self.bn1(short)), F.silu(self.bn2(main))
        deep = main + F.silu(self.bn3(self.conv3(main)))
        return F.silu(self.bn4(self.conv4(paddle.concat([short, main, deep], 1))))


def both(base: Any, raw: Any, swap: bool) -> tuple[Any, Any]:
    return (raw, base) if swap else (base, raw)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("make", [Parts, lambda: Parts(2), lambda: Parts(2, late=True), Flat], ids=range(4))
def test_a_right_port_aligns(make: Any, swap: bool) -> None:
    port = make()
    base, raw = both(Whole(len(getattr(port, "blocks", [0]))), port, swap)
    result = padiff.compare(base, raw, X)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    compared = {(one.base_path, one.raw_path) for one in result.comparisons}
    assert any(
        "cv1.0" in one + other and ("main.conv" in one + other or "conv2" in one + other) for one, other in compared
    )
    assert any("cv1.1" in one + other for one, other in compared)


def optimizers(base: Any, raw: Any) -> tuple[Any, Any]:
    made = [
        torch.optim.SGD(one.parameters(), 0.1)
        if isinstance(one, torch.nn.Module)
        else paddle.optimizer.SGD(0.1, one.parameters())
        for one in (base, raw)
    ]
    return made[0], made[1]


@pytest.mark.parametrize("swap", [False, True])
def test_steps_of_an_optimizer_are_compared(swap: bool) -> None:
    base, raw = both(Whole(), Parts(), swap)
    result = padiff.compare(base, raw, X, optimizers=optimizers(base, raw), steps=2)
    assert result.aligned, str(result)
    phases = {one.phase for one in result.comparisons if "cv1" in one.base_path + one.raw_path}
    assert phases == {"forward", "backward", "gradient", "weight", "buffer"}


def scaled(module: Any, factor: float) -> None:
    hook = getattr(module, "register_forward_post_hook", None) or module.register_forward_hook
    hook(lambda _, given, made: made * factor)


def half_followed(module: Any) -> None:
    hook = getattr(module, "register_forward_post_hook", None) or module.register_forward_hook
    hook(lambda _, given, made: made * 0.5 + (made * 0.5).detach())


def planted(raw: Any, path: str, what: str) -> None:
    module = raw
    for name in path.split(".") if path else ():
        module = module[int(name)] if name.isdigit() else getattr(module, name)
    if what == "scale of conv":
        scaled(module, 1.01)
    elif what == "half":
        half_followed(module)
    elif what == "eps":
        setattr(module, "eps" if hasattr(module, "eps") else "_epsilon", 1e-2)
    elif isinstance(module, torch.nn.SiLU):
        module.forward = torch.relu  # type: ignore[method-assign,assignment]
    else:
        module.bug = what


PLANTED = [
    ("main.conv", "scale of conv", "forward", False),
    ("short.norm", "eps", "forward", True),
    ("main", "act", "forward", False),
    ("short", "act", "forward", False),
    ("short", "act", "forward", True),
    ("", "scale", "forward", True),
    ("blocks.1", "act", "forward", True),
    ("short.norm", "half", "backward", False),
    ("short.conv", "half", "gradient", True),
]


@pytest.mark.parametrize(("path", "what", "phase", "late"), PLANTED)
def test_faults_in_the_parts_have_their_places(path: str, what: str, phase: str, late: bool) -> None:
    """Also where the parts come in another order than the whole's, which no name tells."""
    base, raw = Whole(2), Parts(2, late)
    planted(raw, path, what)
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, phase), str(result)


@pytest.mark.parametrize(
    ("path", "what", "phase"),
    [
        ("cv1.0", "scale of conv", "forward"),
        ("cv1.1", "eps", "forward"),
        ("cv1.2", "act", "forward"),
        ("cv1.1", "half", "backward"),
        ("cv1.0", "half", "gradient"),
    ],
)
def test_faults_in_the_whole_have_their_places(path: str, what: str, phase: str) -> None:
    base, raw = Parts(2), Whole(2)
    planted(raw, path, what)
    result = padiff.compare(base, raw, X)
    assert result.divergence is not None
    assert (result.divergence.raw_path, result.divergence.phase) == (path, phase), str(result)


class One(torch.nn.Module):
    """A layer and one after it, so that it is no model by itself."""

    def __init__(self, layer: torch.nn.Module, made: int, cut: int = 1) -> None:
        super().__init__()
        self.layer, self.last, self.cut = layer, torch.nn.Linear(made, 3), cut

    def forward(self, x: Any) -> Any:
        return self.last(self.layer(x).movedim(self.cut, -1))


class Two(torch.nn.Module):
    """Two layers in its place: each is given all, or its half, and what they return is put together, or added up."""

    def __init__(self, one: Any, two: Any, made: int, cut: int = 1, given: str = "all", added: bool = False) -> None:
        super().__init__()
        self.head, self.one, self.two, self.cut = torch.nn.Linear(made, 3), one, two, cut
        self.given, self.added = given, added

    def forward(self, x: Any) -> Any:
        halves = x.chunk(2, self.cut) if self.given == "halves" else (x, x)
        made = [layer(half) for layer, half in zip((self.one, self.two), halves, strict=True)]
        joined = made[0] + made[1] if self.added else torch.cat(made, self.cut)
        return self.head(joined.movedim(self.cut, -1))


class Rows(torch.nn.Module):
    """A table cut by its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.more, self.head = torch.nn.Embedding(7, 4), torch.nn.Embedding(3, 4), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        known = (x < 7)[..., None]
        return self.head(torch.where(known, self.words(x.clamp(max=6)), self.more((x - 7).clamp(min=0))))


class Placed(torch.nn.Module):
    """Tokens with their places, of the first and of the others in one tensor or in two."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        names = {"first_pos_embed": 1, "rest_pos_embed": 4} if apart else {"pos_embed": 5}
        self.names = tuple(names)
        for name, count in names.items():
            setattr(self, name, torch.nn.Parameter(torch.randn(1, count, 6)))
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(x + torch.cat([getattr(self, name) for name in self.names], 1))


nn = torch.nn
FLAT = X[..., 0].transpose(0, 2, 1).copy()
IDS = np.arange(10).reshape(2, 5)
SPLITS = {
    "grouped": (
        lambda: One(nn.Conv2d(6, 8, 3, groups=2), 8),
        lambda: Two(nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), 8, given="halves"),
        X,
    ),
    "depthwise": (
        lambda: One(nn.Conv2d(6, 6, 3, groups=6), 6),
        lambda: Two(*(nn.Conv2d(3, 3, 3, groups=3) for _ in "ab"), 6, given="halves"),
        X,
    ),
    "transposed": (
        lambda: One(nn.ConvTranspose2d(6, 5, 2), 5),
        lambda: Two(nn.ConvTranspose2d(6, 2, 2), nn.ConvTranspose2d(6, 3, 2), 5),
        X,
    ),
    "norms": (
        lambda: One(nn.BatchNorm2d(6), 6),
        lambda: Two(nn.BatchNorm2d(3), nn.BatchNorm2d(3), 6, given="halves"),
        X,
    ),
    "inputs": (
        lambda: One(nn.Conv2d(6, 4, 1, bias=False), 4),
        lambda: Two(*(nn.Conv2d(3, 4, 1, bias=False) for _ in "ab"), 4, given="halves", added=True),
        X,
    ),
    "linear": (lambda: One(nn.Conv1d(6, 8, 1), 8), None, FLAT.transpose(0, 2, 1).copy()),
    "columns of a table": (
        lambda: One(nn.Embedding(10, 6), 6, -1),
        lambda: Two(nn.Embedding(10, 2), nn.Embedding(10, 4), 6, -1),
        IDS,
    ),
    "rows of a table": (lambda: One(nn.Embedding(10, 4), 4, -1), Rows, IDS),
    "places": (lambda: Placed(False), lambda: Placed(True), FLAT),
}


class Projected(torch.nn.Module):
    """Two linear layers where another has one kernel over single places."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4), torch.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = x.transpose(1, 2)
        return self.head(torch.cat([self.one(x), self.two(x)], -1))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", SPLITS)
def test_layers_of_any_rank_along_any_axis(name: str, swap: bool) -> None:
    torch.manual_seed(0)
    whole, parts, x = SPLITS[name]
    base, raw = both(whole(), (parts or Projected)(), swap)
    for tensor in base.state_dict().values():
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    result = padiff.compare(base, raw, x)
    assert result.aligned, str(result)
    assert result.coverage["parameters"] == 1.0
    with torch.no_grad():
        next(raw.parameters()).data.mul_(1.01)
    assert not padiff.compare(base, raw, x, weights="keep").aligned


class Queries(torch.nn.Module):
    """A table of places and of contents, cut into its columns, as decoders of objects keep them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places, self.head = torch.nn.Embedding(5, 8), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        where, what = self.table.weight.split(4, 1)
        return self.head(torch.tanh(self.places(where)) * what + x)


class Tables(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.b, self.a = paddle.nn.Embedding(5, 4), paddle.nn.Embedding(5, 4)
        self.fc, self.mix, self.bug = paddle.nn.Linear(4, 3), paddle.nn.Linear(4, 4), bug

    def forward(self, x: Any) -> Any:
        what = self.a.weight * (2.0 if self.bug else 1.0)
        return self.fc(F.tanh(self.mix(self.b.weight)) * what + x)


def test_a_table_whose_columns_are_told_by_running() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype("float32")
    assert padiff.compare(Queries(), Tables(), x).aligned
    found = padiff.compare(Queries(), Tables("scale"), x).divergence
    assert found is not None
    assert (found.raw_path, found.phase) == ("", "forward")
