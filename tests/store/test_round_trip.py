"""What was written is read back: bit by bit, and as the records it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays_of
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.errors import ArgumentError, DumpError
from padiff.records import Call, Frame, Slot, StepTrace, Value
from padiff.store import Dump, DumpWriter, LostValue, Opaque, Stats, statistics
from padiff.store.dtypes import _AS_BYTES, _AS_PAIRS, _PLAIN
from tests.store.sketches import FACTS, ArrayValue, arrays, contents, plain, trace, tree, write

DTYPES = sorted({*_PLAIN, *_AS_PAIRS, *(name for name in _AS_BYTES if hasattr(ml_dtypes, name))})


def dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def one(path: Path, *given: Any, **options: Any) -> Dump:
    """A dump of one step whose tensors are those given."""
    with DumpWriter(path, tree=tree(), facts=FACTS, **options) as writer:
        step = writer.begin_step(0)
        for number, array in enumerate(given):
            step.tensor(number, array)
        step.end()
    return Dump.open(path)


def same(found: Value, array: Any) -> bool:
    read = found.numpy()
    assert (read.dtype, read.shape) == (array.dtype, array.shape) == (dtype(found.dtype), found.shape)
    return read.tobytes() == array.tobytes()


def test_a_trace_comes_back_as_the_record_it_was(tmp_path: Path) -> None:
    written = trace(0)
    dump = Dump.open(write(tmp_path / "run"))
    read = dump.step(0).trace()
    assert isinstance(read, StepTrace)
    assert (read.step, read.ran_backward) == (0, True)
    for before, after in zip(written.calls, read.calls, strict=True):
        for name in ("index", "parent", "node", "path", "kind", "occurrence", "tensors", "stack"):
            assert getattr(before, name) == getattr(after, name)
        for old, new in zip((*before.inputs, *before.outputs), (*after.inputs, *after.outputs), strict=True):
            assert (old.name, old.tensor, old.tracked) == (new.name, new.tensor, new.tracked)
            assert same(new.value, old.value.numpy())
    assert list(read.gradients) == [3, 0]
    assert all(same(read.gradients[number], value.numpy()) for number, value in written.gradients.items())
    assert read.parameter_gradients["b"] is None
    assert read.loss is not None
    assert read.loss.numpy() == 0.5


def test_facts_tree_and_extras_come_back(tmp_path: Path) -> None:
    dump = Dump.open(write(tmp_path / "run"))
    assert dump.facts == FACTS
    assert [step.number for step in dump.steps] == [0, 1]
    assert len(dump.steps[1:]) == 1
    assert dump.extra == {"note": "sketch"}
    nodes = dump.tree.nodes
    assert [node.children for node in nodes] == [(1, 2), (), ()]
    assert [node.line for node in nodes] == ["Net()", "Linear(4, 3)", "Linear(4, 3)"]
    assert nodes[1].identity == nodes[2].identity != nodes[0].identity
    assert nodes[1].parameters[0].identity == nodes[2].parameters[0].identity != nodes[0].buffers[0].identity
    assert (nodes[2].atomic, nodes[1].layer, nodes[0].layer) == (True, "linear", None)
    assert nodes[0].buffers[0].computed
    step = dump.step(1)
    assert step.noise["tensors"]["1"] == 1e-7
    assert np.isnan(step.noise["tensors"]["3"])
    assert step.extra == {"lr": 0.1, "tags": ["a"]}
    assert step.heard and step.unseen == (("aten.mystery", "last"),)
    mask, uniform = (draw.load() for draw in step.draws)
    assert np.array_equal(mask.value, np.arange(11).reshape(11, 1) % 3 == 0) and mask.value.dtype == np.bool_
    assert (mask.kind, mask.keep, mask.op, mask.call, mask.path, mask.clock, mask.event) == (
        *("mask", 0.25, "aten.bernoulli_", 1, "first", 2),
        None,
    )
    assert (uniform.loc, uniform.scale, uniform.call, uniform.chance) == (1.0, 2.0, -1, 0.5)
    assert uniform.value.tolist() == [1.0, 1.5, 2.0] and uniform.value.dtype == np.float32
    assert uniform.event is not None and uniform.event.tolist() == [[True], [False], [False]]
    assert step.buffers["count"].numpy() == 1


def test_source_lines_come_with_the_dump(tmp_path: Path) -> None:
    code = tmp_path / "net.py"
    code.write_text("\n".join(f"line {n}" for n in range(1, 21)), encoding="utf-8")
    frames = (Frame(str(code), 4, "forward"), Frame(str(code), 7, "forward"))
    call = Call(0, -1, 0, "", "Net", 0, (), (), stack=frames)
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        writer.write_step(StepTrace(0, (call,), {}, None, {}))
    code.unlink()
    dump = Dump.open(tmp_path / "run")
    assert dump.step(0).calls[0].stack == frames
    assert [dump.source_line(Frame(str(code), n, "forward")).text for n in (3, 4, 5, 7, 8)] == [
        "",
        "line 4",
        "line 5",
        "line 7",
        "",
    ]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_every_dtype_is_bit_equal(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype(name))
    dump = one(tmp_path / "run", array, np.ones(3, np.int8), array)
    assert all(same(dump.step(0).value(number), array) for number in (0, 2))
    assert dump.step(0).value(0).numpy().flags.aligned


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24.0)[::-2],
        np.broadcast_to(np.float32(3), (4, 5)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5, dtype=">f4"),
        np.array([np.nan, -0.0, np.inf, np.uint64(1).view(np.float64)]),
    ],
    ids=["transposed", "reversed", "broadcast", "fortran", "big-endian", "odd"],
)
@pytest.mark.parametrize("kind", ["full", "stats", "hash"])
def test_any_layout_is_kept_by_its_elements(array: Any, kind: Any, tmp_path: Path) -> None:
    plain_array = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    value = one(tmp_path / "run", array, kind=kind).step(0).value(0)
    assert value.shape == array.shape
    assert value.digest() == statistics(plain_array).digest
    if kind == "full":
        assert same(value, plain_array)


@given(
    arrays_of.arrays(
        st.sampled_from([np.float32, np.float64, np.int16, np.bool_, np.complex64]),
        arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    )
)
def test_whatever_is_written_is_read(tmp_path_factory: Any, array: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    assert same(one(folder / "full", array).step(0).value(0), array)
    value: Any = one(folder / "stats", array, kind="stats").step(0).value(0)
    assert str(value.statistics()) == str(statistics(array))  # as text: a sampled NaN is not equal to itself


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array([1], "M8[s]"), np.zeros(2, "f4,i4")])
def test_what_is_no_number_is_refused(array: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="a dump cannot hold an array of dtype"):
        one(tmp_path / "run", array)
    assert not list(tmp_path.iterdir())


def test_the_kinds_hold_what_they_promise(tmp_path: Path) -> None:
    read = {kind: Dump.open(write(tmp_path / kind, kind)).step(0) for kind in ("full", "stats", "hash")}
    for number, array in arrays().items():
        values: dict[str, Any] = {kind: step.value(number) for kind, step in read.items()}
        assert {v.shape for v in values.values()} == {array.shape}
        assert {v.dtype for v in values.values()} == {array.dtype.name}
        assert len({v.digest() for v in values.values()}) == 1
        assert isinstance(values["stats"].statistics(), Stats)
        assert values["full"].statistics() == values["stats"].statistics()
        with pytest.raises(DumpError, match="holds statistics of its tensors, not their elements"):
            values["stats"].numpy()
        with pytest.raises(DumpError, match="holds digests"):
            values["hash"].numpy()
        with pytest.raises(DumpError, match="holds digests"):
            values["hash"].statistics()


def test_one_tensor_in_many_slots_is_stored_once(tmp_path: Path) -> None:
    dump = Dump.open(write(tmp_path / "run", steps=1))
    calls = dump.step(0).calls
    assert calls[0].outputs[0].value.number == calls[1].inputs[0].value.number  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["full", "stats", "hash"])
@pytest.mark.parametrize("shard_bytes", [1, 1 << 20], ids=["on disk", "in memory"])
def test_weights_that_stay_are_stored_once(kind: Any, shard_bytes: int, tmp_path: Path) -> None:
    frozen, moving = np.arange(50.0), np.zeros(50)
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, kind=kind, shard_bytes=shard_bytes) as writer:
        for number in range(4):
            step = writer.begin_step(number)
            step.weights({"a": frozen, "b": moving, "c": frozen})
            step.end()
            moving += 1
    dump = Dump.open(tmp_path / "run")
    weights: list[Any] = [step.weights for step in dump.steps]
    assert len({w["a"].number for w in weights}) == 1
    assert len({w["b"].number for w in weights}) == 4
    if kind == "full":
        assert all(same(w["a"], frozen) and same(w["b"], np.full(50, float(n))) for n, w in enumerate(weights))
        assert {file.name for file in (tmp_path / "run").glob("*.safetensors")} == {
            f"tensors-{n:05d}.safetensors" for n in range(6 if shard_bytes == 1 else 1)
        }


def test_shards_are_bounded_and_a_large_tensor_has_its_own(tmp_path: Path) -> None:
    given = [np.full(size, size % 256, np.uint8) for size in (400, 500, 200, 5000, 10, 20)]
    dump = one(tmp_path / "run", *given, shard_bytes=1000)
    sizes = [file.stat().st_size for file in sorted((tmp_path / "run").glob("*.safetensors"))]
    assert len(sizes) == 4
    assert all(same(dump.step(0).value(number), array) for number, array in enumerate(given))


def test_overwritten_tensors_say_so(tmp_path: Path) -> None:
    gone: Any = ArrayValue(np.ones((2, 3), np.float32), overwritten=True)
    call = Call(0, -1, 0, "", "Net", 0, (Slot("0", 0, gone),), ())
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        step = writer.begin_step(0)
        step.leave_out(1, ArrayValue(np.ones(4)))  # type: ignore[arg-type]
        step.call(call)
        step.end()
    read = Dump.open(tmp_path / "run").step(0)
    value = read.value(0)
    assert isinstance(value, LostValue)
    assert (value.shape, value.dtype, value.overwritten) == ((2, 3), "float32", True)
    assert not read.value(1).overwritten
    with pytest.raises(DumpError, match="overwritten before it could be copied"):
        value.numpy()
    with pytest.raises(DumpError, match="left out"):
        read.value(1).numpy()


def test_an_array_may_change_once_it_was_handed_over(tmp_path: Path) -> None:
    array = np.zeros(1000)
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        step = writer.begin_step(0)
        for number in range(100):
            array[:] = number
            step.tensor(number, array)
        step.end()
    read = Dump.open(tmp_path / "run").step(0)
    assert all((read.value(number).numpy() == number).all() for number in range(100))


def test_nested_arguments_come_back(tmp_path: Path) -> None:
    args = ((1, True, None), [2.5, float("inf"), "x"], {"a": {3: np.arange(3)}, (1, 2): 1 + 2j}, 2**80, object())
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        step = writer.begin_step(0)
        step.arguments((args, {"mask": np.array([True, False])}))
        step.end()
    found = Dump.open(tmp_path / "run").step(0).arguments
    assert found is not None
    read, named = found
    assert read[:2] == args[:2]
    assert read[3:] == (2**80, Opaque("builtins.object"))
    assert list(read[2]) == ["a", (1, 2)]
    assert read[2][(1, 2)] == 1 + 2j
    assert read[2]["a"][3].numpy().tolist() == [0, 1, 2]
    assert named["mask"].numpy().tolist() == [True, False]


def test_endless_arguments_are_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with (
        pytest.raises(ArgumentError, match="nested more than 64"),
        DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer,
    ):
        writer.begin_step(0).arguments(((loop,), {}))
    assert not list(tmp_path.iterdir())


def test_releasing_gives_memory_back_and_elements_stay_readable(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal(1 << 20)
    dump = one(tmp_path / "run", array, array + 1)
    value = dump.step(0).value(0)
    kept = value.numpy()
    value.release()
    dump.close()
    assert same(value, array)
    assert kept.tobytes() == array.tobytes()
    assert not kept.flags.writeable


def test_reading_many_shards_keeps_few_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("padiff.store.shelves._MOST_MAPPED", 3)
    dump = one(tmp_path / "run", *(np.full(10, n) for n in range(20)), shard_bytes=1)
    for _ in range(2):
        assert [int(dump.step(0).value(n).numpy()[0]) for n in range(20)] == list(range(20))
    assert len(dump._shelves._mapped) == 3


def test_equal_runs_make_equal_dumps(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(tmp_path / "b")
    assert {f.name: f.read_bytes() for f in (tmp_path / "a").iterdir()} == {
        f.name: f.read_bytes() for f in (tmp_path / "b").iterdir()
    }
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert plain(Dump.open(tmp_path / "a").step(0).loss)[1] == ()


def test_a_dump_can_be_moved(tmp_path: Path) -> None:
    before = contents(write(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    assert contents(tmp_path / "b") == before


def test_a_step_number_is_used_once_and_steps_end(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS) as writer:
        writer.begin_step(5).end()
        with pytest.raises(ArgumentError, match="step is 5"):
            writer.begin_step(5)
        writer.begin_step(3).end()
        writer.begin_step(9)
        with pytest.raises(ArgumentError, match="step 9 has not been ended"):
            writer.begin_step(10)
    dump = Dump.open(tmp_path / "run")
    assert [step.number for step in dump.steps] == [5, 3]
    with pytest.raises(DumpError, match="has no step 9\nhint: it holds 5, 3"):
        dump.step(9)
    with pytest.raises(DumpError, match="has been ended"):
        writer.begin_step(11)


@pytest.mark.parametrize("extra", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_extras_are_json(extra: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="extra cannot be written as JSON"):
        DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, extra=extra)
    assert not list(tmp_path.iterdir())


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="kind is 'half', expected one of full, stats, hash"):
        DumpWriter(tmp_path / "run", tree=tree(), facts=FACTS, kind="half")  # type: ignore[arg-type]


def test_a_tree_out_of_order_is_refused(tmp_path: Path) -> None:
    good = tree()
    wrong = dataclasses.replace(
        good, nodes=(good.nodes[0], dataclasses.replace(good.nodes[1], parent=2), good.nodes[2])
    )
    with pytest.raises(ArgumentError, match=r"node 1 \('first'\) does not come after its parent, node 2"):
        DumpWriter(tmp_path / "run", tree=wrong, facts=FACTS)
