"""The safetensors library reads every shard."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from padiff.store import Dump
from tests.store.sketches import arrays, write
from tests.store.test_round_trip import DTYPES, dtype, one

safetensors = pytest.importorskip("safetensors")


def shards(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def raw_bytes(file: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name to dtype, shape and bytes, as the library hands them out without any framework."""
    found = safetensors.deserialize(file.read_bytes())
    return {name: (info["dtype"], tuple(info["shape"]), bytes(info["data"])) for name, info in found}


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_accepted(name: str, tmp_path: Path) -> None:
    array = (np.arange(6) % 2).reshape(2, 3).astype(dtype(name))
    one(tmp_path / "run", array, np.zeros((), dtype(name)), np.zeros((2, 0), dtype(name)), np.ones(3, bool), array.T)
    (file,) = shards(tmp_path / "run")
    found = raw_bytes(file)
    assert set(found) == {"0", "1", "2", "3", "4"}
    pair = (2,) if name.startswith("complex") else ()
    assert found["0"][1:] == ((2, 3, *pair), array.tobytes())
    assert found["1"][1] == pair
    assert found["2"][1:] == ((2, 0, *pair), b"")
    assert found["4"][1:] == ((3, 2, *pair), np.ascontiguousarray(array.T).tobytes())


@pytest.mark.parametrize("kind", ["full", "stats", "hash"])
def test_every_kind_is_accepted(kind: Any, tmp_path: Path) -> None:
    write(tmp_path / "run", kind)
    for file in shards(tmp_path / "run"):
        assert raw_bytes(file)


def test_numpy_gets_equal_tensors(tmp_path: Path) -> None:
    numpy_loader = pytest.importorskip("safetensors.numpy")
    given = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array(3), np.zeros((0, 2), np.float16), np.ones(3, bool)]
    one(tmp_path / "run", *given)
    found = numpy_loader.load_file(shards(tmp_path / "run")[0])
    for number, array in enumerate(given):
        assert found[str(number)].dtype == array.dtype
        assert found[str(number)].shape == array.shape
        assert found[str(number)].tobytes() == array.tobytes()


def test_torch_gets_equal_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch_loader = pytest.importorskip("safetensors.torch")
    write(tmp_path / "run", steps=1)
    found = torch_loader.load_file(shards(tmp_path / "run")[0])
    value: Any = Dump.open(tmp_path / "run").step(0).value(1)
    tensor = found[str(value.number)]
    assert tensor.dtype == torch.bfloat16
    assert tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16).tobytes() == arrays()[1].tobytes()


def test_the_index_and_the_library_agree_on_metadata(tmp_path: Path) -> None:
    write(tmp_path / "run")
    with safetensors.safe_open(shards(tmp_path / "run")[0], framework="np") as file:
        metadata = file.metadata()
        assert metadata["format"] == "padiff-dump"
    data = shards(tmp_path / "run")[0].read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert metadata["crc32"] == f"{zlib.crc32(data[start:]):08x}"
