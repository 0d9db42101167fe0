"""More than ten thousand damaged dumps: none is taken for a whole one, none raises anything but DumpError.

Damage comes in two kinds. An accident changes bytes and leaves checksums alone: every one must be refused. A forgery
changes what a file says and makes all checksums right again: it may only be refused, or read to the end.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from padiff.errors import DumpError
from padiff.store.checks import digest
from padiff.store.index import sealed
from padiff.store.shards import LENGTH
from tests.store.sketches import contents, write

ACCIDENTS = 3500
FORGERIES = 1200
KINDS = ("full", "stats", "hash")
Files = dict[str, bytes]


@pytest.fixture(params=KINDS, scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files, Files]:
    """A dump, its files, and the files of another that looks much like it."""
    kind, tmp_path = request.param, tmp_path_factory.mktemp("fuzz")
    path = write(tmp_path / "run", kind, steps=2)
    other = write(tmp_path / "other", kind, steps=2, scale=2.0)
    return path, files_of(path), files_of(other)


def files_of(path: Path) -> Files:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


class Bench:
    """Puts damaged files in place, looks, and puts the whole ones back."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path, self.files = path, files
        self.expected = contents(path)
        self.count = 0

    def refused(self, damaged: Files) -> bool:
        """Whether a dump with these files in place of its own is refused; anything but DumpError comes through."""
        changed = {name for name in self.files if damaged.get(name) != self.files[name]}
        self.count += 1
        for name in changed:
            (self.path / name).unlink()
            if name in damaged:
                (self.path / name).write_bytes(damaged[name])
        try:
            self.found = contents(self.path)
        except DumpError as error:
            assert str(self.path) in str(error)
            return True
        finally:
            for name in changed:
                (self.path / name).unlink(missing_ok=True)
                (self.path / name).write_bytes(self.files[name])
        return False


# --- accidents


def flip(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def extend(data: bytes, chance: random.Random) -> bytes:
    return data + chance.randbytes(chance.randint(1, 50))


def scribble(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    piece = chance.randbytes(chance.randint(1, 64))
    return data[:start] + piece + data[start + len(piece) :]


def zero(data: bytes, chance: random.Random) -> bytes:
    """A hole, as a file system leaves it after a crash."""
    start = chance.randrange(len(data))
    size = chance.randint(1, 512)
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]


def drop(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.randint(1, 20) :]


def exchange(data: bytes, chance: random.Random) -> bytes:
    """Two stretches of one file in each other's place."""
    size = chance.randint(1, len(data) // 3)
    first = chance.randrange(len(data) - 2 * size + 1)
    second = chance.randrange(first + size, len(data) - size + 1)
    middle = data[first + size : second]
    return data[:first] + data[second : second + size] + middle + data[first : first + size] + data[second + size :]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip,
    flip,
    flip,
    truncate,
    extend,
    scribble,
    zero,
    drop,
    exchange,
)


def test_no_accident_is_overlooked(whole: tuple[Path, Files, Files]) -> None:
    path, files, other = whole
    bench, chance = Bench(path, files), random.Random(1)
    while bench.count < ACCIDENTS:
        name = chance.choice(sorted(files))
        damage = chance.choice(DAMAGES)
        data = damage(files[name], chance)
        if data != files[name]:
            assert bench.refused({**files, name: data}), f"{damage.__name__} of {name} was overlooked"
    for name in files:
        assert bench.refused({n: data for n, data in files.items() if n != name})
        if other[name] != files[name]:
            assert bench.refused({**files, name: other[name]}), f"{name} of another dump was overlooked"
        for replaced in files:
            if replaced != name:
                assert bench.refused({**files, replaced: files[name]})
    assert contents(path) == bench.expected


def test_every_single_bit_of_the_index_counts(whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    bench = Bench(path, files)
    index = files["index.json"]
    for place in range(0, len(index), 3):
        flipped = index[:place] + bytes([index[place] ^ (1 << place % 8)]) + index[place + 1 :]
        assert bench.refused({**files, "index.json": flipped}), f"byte {place}"


# --- forgeries


def nest(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


EVIL: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    17,
    2**31,
    2**53,
    2**63,
    2**64 + 1,
    10**400,
    0.5,
    -0.0,
    1e308,
    "",
    "0",
    "full",
    "stats",
    "../run/index.json",
    "/etc/passwd",
    "tensors-00000.safetensors",
    "step-00000.json",
    "tensors-00001.safetensors",
    "step-00000.json\n",
    "\x00",
    "\ud800",
    "é",
    "complex64",
    "float128",
    "a" * 5000,
    [],
    [[]],
    {},
    {"a": 1},
    [0, 1],
    [1, 0],
    [2**40, 2**40],
    [2**62, 0],
    ["", 0],
    {"dtype": "float32", "shape": [2], "lost": "overwritten"},
    {"tensor": 0},
    {"dict": [[[], 1]]},
    {"dict": [[{"list": []}, 1]]},
    {"int": "9" * 5000},
    {"float": "x"},
    nest(100),
)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a document."""
    if at:
        yield at
    if isinstance(document, dict):
        for key in document:
            yield from places(document[key], (*at, key))
    elif isinstance(document, list):
        for number, item in enumerate(document):
            yield from places(item, (*at, number))


def forge(document: Any, chance: random.Random) -> Any:
    """A copy with one to three things changed: replaced, removed, doubled, exchanged, nudged."""
    changed = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        known = list(places(changed))
        if not known:
            return changed
        *way, last = chance.choice(known)
        holder = changed
        for step in way:
            holder = holder[step]
        match chance.randrange(6):
            case 0 | 1:
                holder[last] = copy.deepcopy(chance.choice(EVIL))
            case 2:
                del holder[last]
            case 3 if isinstance(holder, list):
                holder.insert(last, copy.deepcopy(holder[last]))
            case 3:
                holder[chance.choice(("x", "shape", "__metadata__", "0"))] = copy.deepcopy(holder[last])
            case 4 if isinstance(holder[last], int):
                holder[last] += chance.choice((-1, 1, 2**33))
            case _:
                other = chance.choice(list(places(document)))
                value = document
                for step in other:
                    value = value[step]
                holder[last] = copy.deepcopy(value)
    return changed


def to_bytes(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("ascii")


def with_index(files: Files, index: Any) -> Files:
    """The files with another index under a right checksum, wherever it says so itself."""
    index = {key: value for key, value in index.items() if key != "checksum"} if isinstance(index, dict) else index
    if isinstance(index, dict) and list(index)[:2] == ["format", "schema"]:
        try:
            return {**files, "index.json": sealed(index)}
        except (ValueError, RecursionError):
            pass
    body = to_bytes(index)[:-1]
    return {**files, "index.json": body + b',"checksum":"' + digest(body).hex().encode() + b'"}\n'}


def with_step(files: Files, data: bytes) -> Files:
    index = json.loads(files["index.json"])
    index["steps"][0].update(size=len(data), digest=digest(data).hex())
    return with_index({**files, "step-00000.json": data}, index)


def with_header(files: Files, header: bytes, data: bytes | None = None) -> Files:
    name = "tensors-00000.safetensors"
    old = files[name]
    body = old[LENGTH.size + LENGTH.unpack_from(old)[0] :] if data is None else data
    head = LENGTH.pack(len(header)) + header
    index = json.loads(files["index.json"])
    index["shards"][0].update(size=len(head) + len(body), header=digest(head).hex())
    return with_index({**files, name: head + body}, index)


def header_of(files: Files) -> Any:
    old = files["tensors-00000.safetensors"]
    return json.loads(old[LENGTH.size : LENGTH.size + LENGTH.unpack_from(old)[0]])


def test_no_forgery_breaks_the_reader(whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    bench, chance = Bench(path, files), random.Random(2)
    index, step, header = json.loads(files["index.json"]), json.loads(files["step-00000.json"]), header_of(files)
    accepted = 0
    while bench.count < FORGERIES:
        which = chance.randrange(3)
        if which == 0:
            forged = with_index(files, forge(index, chance))
        elif which == 1:
            forged = with_step(files, to_bytes(forge(step, chance)))
        else:
            forged = with_header(files, to_bytes(forge(header, chance)))
        accepted += not bench.refused(forged)
    assert 0 < accepted < FORGERIES // 2  # names and texts may be anything; numbers and structure may not


def test_forged_elements_need_their_checksum(whole: tuple[Path, Files, Files]) -> None:
    """With every other checksum made right, changed elements are still refused."""
    path, files, _ = whole
    bench, chance = Bench(path, files), random.Random(3)
    old = files["tensors-00000.safetensors"]
    start = LENGTH.size + LENGTH.unpack_from(old)[0]
    for _ in range(200):
        assert bench.refused(with_header(files, old[LENGTH.size : start], flip(old[start:], chance)))


INDEX_FORGERIES: dict[str, Callable[[Any], object]] = {
    "leaves the folder": lambda i: i["shards"][0].update(file="../other/tensors-00000.safetensors"),
    "absolute": lambda i: i["steps"][0].update(file="/tmp/step-00000.json"),
    "a step for a shard": lambda i: i["shards"][0].update(file="step-00000.json"),
    "another digit": lambda i: i["steps"][0].update(file="step-0000٠.json"),
    "one step twice": lambda i: i["steps"].append(i["steps"][0]),
    "huge": lambda i: i["shards"][0].update(size=2**60),
    "many tensors": lambda i: i["shards"][0].update(count=2**50),
    "fewer tensors": lambda i: i["shards"][0].update(count=i["shards"][0]["count"] - 1),
    "later tensors": lambda i: i["shards"][0].update(first=1),
    "negative": lambda i: i["shards"][0].update(size=-1),
    "a float": lambda i: i["shards"][0].update(size=float(i["shards"][0]["size"])),
    "no shard": lambda i: i["shards"].clear(),
    "a loop in the tree": lambda i: i["tree"]["nodes"][1].update(parent=2),
    "its own parent": lambda i: i["tree"]["nodes"][1].update(parent=1),
    "no tree": lambda i: i["tree"].update(nodes=[]),
    "two roots": lambda i: i["tree"]["nodes"][2].update(parent=-1),
    "unknown kind": lambda i: i.update(kind="some"),
    "another kind": lambda i: i.update(kind="hash" if i["kind"] == "full" else "full"),
    "unknown member": lambda i: i.update(more=1),
    "older schema": lambda i: i.update(schema=0),
    "newer schema": lambda i: i.update(schema=99),
}
STEP_FORGERIES: dict[str, Callable[[Any], object]] = {
    "a tensor that is not there": lambda s: s["tensors"].__setitem__(0, 10**6),
    "a slot without tensor": lambda s: s["calls"][0]["inputs"][0].__setitem__(1, 50),
    "a negative tensor": lambda s: s["tensors"].__setitem__(0, -1),
    "two calls of one index": lambda s: s["calls"][0].update(index=0),
    "a call in itself": lambda s: s["calls"][0].update(parent=1),
    "an unknown node": lambda s: s["calls"][0].update(node=3),
    "an unknown stack": lambda s: s["calls"][0].update(stack=9),
    "an unknown frame": lambda s: s["stacks"].append([7]),
    "two gradients": lambda s: s["gradients"].append(s["gradients"][0]),
    "another step": lambda s: s.update(step=1),
    "newer schema": lambda s: s.update(schema=2),
    "a tensor for a call": lambda s: s["calls"].append(3),
    "no such number": lambda s: s["noise"].update(a={"b": "c"}),
    "two ops of one index": lambda s: s["calls"][3]["ops"][2].update(index=s["calls"][3]["ops"][0]["index"]),
    "an op that is a call": lambda s: s["calls"][3]["ops"][0].update(index=1),
    "an op without a mark": lambda s: s["calls"][3]["ops"][0].update(name="matmul"),
    "an op without tensor": lambda s: s["calls"][3]["ops"][0]["outputs"][0].__setitem__(1, 50),
    "an op with an unknown stack": lambda s: s["calls"][3]["ops"][0].update(stack=9),
    "an op with an unknown option": lambda s: s["calls"][3]["ops"][0]["options"].update(a={"set": []}),
    "an op with a tensor for an option": lambda s: s["calls"][3]["ops"][0]["options"].update(a={"tensor": 0}),
    "an op in an op": lambda s: s["calls"][3]["ops"][0].update(ops=[]),
    "a mask of another shape": lambda s: s["draws"][0]["value"].update(shape=[11, 2]),
    "a huge mask": lambda s: s["draws"][0]["value"].update(shape=[2**52, 2**52]),
    "a mask of no bits": lambda s: s["draws"][1]["value"].update(shape=[24]),
    "a draw from nowhere": lambda s: s["draws"][0]["value"].update(tensor=10**6),
    "a draw without scale": lambda s: s["draws"][1].update(scale=0),
    "a draw by nobody": lambda s: s["draws"][0].update(call=-2),
    "a draw of words": lambda s: s["draws"][0].update(parameters={"keep": "half"}),
    "half of what is unseen": lambda s: s["unseen"].append(["aten.mystery"]),
    "a moment from nowhere": lambda s: s["moments"]["moment1"].update(w=10**6),
}
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "duplicate key": lambda t: t.replace(b'"schema":1,', b'"schema":1,"schema":1,', 1),
    "NaN": lambda t: t.replace(b'"extra":{', b'"extra":{"a":NaN,', 1),
    "infinite": lambda t: t.replace(b'"extra":{', b'"extra":{"a":1e999,', 1),
    "deep": lambda t: t.replace(b'"extra":{', b'"extra":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b",", 1),
    "digits": lambda t: t.replace(b'"extra":{', b'"extra":{"a":' + b"9" * 100_000 + b",", 1),
    "no UTF-8": lambda t: t.replace(b'"extra":{', b'"extra":{"\xff":1,', 1),
    "a comma too many": lambda t: t.replace(b'"extra":{', b'"extra":{,', 1),
}


@pytest.mark.parametrize("name", INDEX_FORGERIES)
def test_forged_indexes_are_refused(name: str, whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    index = json.loads(files["index.json"])
    INDEX_FORGERIES[name](index)
    assert Bench(path, files).refused(with_index(files, index))


@pytest.mark.parametrize("name", STEP_FORGERIES)
def test_forged_steps_are_refused(name: str, whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    step = json.loads(files["step-00000.json"])
    STEP_FORGERIES[name](step)
    assert Bench(path, files).refused(with_step(files, to_bytes(step)))


@pytest.mark.parametrize("name", TEXTS)
def test_ambiguous_texts_are_refused(name: str, whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    bench = Bench(path, files)
    assert bench.refused(with_step(files, TEXTS[name](files["step-00000.json"])))
    body = TEXTS[name](files["index.json"].rpartition(b',"checksum"')[0])
    assert bench.refused({**files, "index.json": body + b',"checksum":"' + digest(body).hex().encode() + b'"}\n'})


HEADER_FORGERIES: dict[str, Callable[[Any], object]] = {
    "a larger shape": lambda t: t["shape"].append(2),
    "a huge shape": lambda t: t.update(shape=[2**40, 2**40]),
    "a huge empty shape": lambda t: t.update(shape=[2**62, 0]),
    "a negative shape": lambda t: t.update(shape=[-1]),
    "a wider dtype": lambda t: t.update(dtype="I32" if t["dtype"] in ("F64", "I64") else "F64"),
    "an unknown dtype": lambda t: t.update(dtype="F128"),
    "beyond the end": lambda t: t.update(data_offsets=[o + 2**40 for o in t["data_offsets"]]),
    "an overlap": lambda t: t.update(data_offsets=[o - 1 for o in t["data_offsets"]]),
    "backwards": lambda t: t.update(data_offsets=t["data_offsets"][::-1]),
    "a member more": lambda t: t.update(x=1),
}


@pytest.mark.parametrize("name", HEADER_FORGERIES)
def test_forged_headers_are_refused(name: str, whole: tuple[Path, Files, Files]) -> None:
    path, files, _ = whole
    bench = Bench(path, files)
    header = header_of(files)
    for tensor in header:
        if tensor == "__metadata__" or not np.prod(header[tensor]["shape"]):
            continue
        forged = copy.deepcopy(header)
        HEADER_FORGERIES[name](forged[tensor])
        assert bench.refused(with_header(files, to_bytes(forged))), tensor
    assert bench.count


def test_ten_thousand() -> None:
    """What the tests above damage at least, over the three kinds."""
    assert len(KINDS) * ACCIDENTS >= 10_000
