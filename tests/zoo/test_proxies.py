"""Pairs of the zoo run apart through proxies: dumps of clean pairs agree, a planted bug is named from dumps alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import padiff
from padiff.engine.inputs import fresh_arguments, one_or_two
from padiff.frameworks import adapter_of_model, module_tree
from tests.zoo import libraries
from tests.zoo.pairs import PAIRS, Pair
from tests.zoo.prepare import fill, state_of, write

CHOSEN = (
    "bert: transformers, paddlenlp",
    "gpt2: transformers, paddlenlp",
    "llama: transformers, paddleformers",
    "t5: transformers, paddlenlp",
    "vit: timm, transformers",
    "swin: timm, ppcls",
    "mobilenet_v2: timm, torchvision",
)
BOUNDS = {"atol": 1e-4, "rtol": 1e-3}


def run(proxy: Any, arguments: Any) -> None:
    """One step of training without an update."""
    adapter = adapter_of_model(proxy.model, "model")
    output = proxy(*arguments.args, **dict(arguments.kwargs))
    first = next(tensor for _, tensor in adapter.flatten(output) if adapter.dtype(tensor).startswith("float"))
    proxy.backward((first * first).mean())
    proxy.try_dump()
    for parameter in proxy.parameters():
        adapter.set_gradient(parameter, None)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.name in CHOSEN], ids=lambda pair: pair.name)
def test_proxies(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in pair.libraries:
        if reason := libraries.missing(library):
            pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    base, raw, inputs = pair.build(True)
    assert pair.convert is not None
    fill(raw, {**state_of(raw), **pair.convert(state_of(base))})
    trees = [module_tree(adapter_of_model(model, "model"), model) for model in (base, raw)]
    arguments = fresh_arguments(*trees, *one_or_two(inputs, *trees))
    one, other = padiff.create_model(base, "a"), padiff.create_model(raw, "b")
    for proxy, given in zip((one, other), arguments(), strict=True):
        run(proxy, given)
    if not padiff.check_report(one.dump_path, other.dump_path):  # the documented bounds are narrower than rounding
        assert "of the size of rounding noise" in capsys.readouterr().out
    assert padiff.compare_dumps(one.dump_path, other.dump_path).aligned
    assert padiff.check_report(one.dump_path, other.dump_path, BOUNDS), capsys.readouterr().out
    assert padiff.check_params(one.dump_path, other.dump_path, BOUNDS), capsys.readouterr().out

    matrices = [(name, tensor) for name, tensor in raw.named_parameters() if tensor.ndim >= 2]
    name, tensor = matrices[len(matrices) // 2]
    write(tensor, 1.5 * tensor.detach().numpy())
    for proxy, given in zip((one, other), arguments(), strict=True):
        run(proxy, given)
    capsys.readouterr()
    assert not padiff.check_report(f"{one.dump_path}/step_1", f"{other.dump_path}/step_1", BOUNDS)
    place = re.search(r"Route: .*\n\[AutoDiff\] +b\(raw_model\)\.(.*)", capsys.readouterr().out)
    assert place is not None
    assert place[1] == name.rpartition(".")[0]
    assert not padiff.check_weights(f"{one.dump_path}/step_1", f"{other.dump_path}/step_1", BOUNDS)
    listed = (tmp_path / "padiff_log" / "weights_diff").read_text()
    assert re.findall(r"raw_model path:\n    b\(raw_model\)\.(\S+)", listed) == [name]
