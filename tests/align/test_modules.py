"""Laws of pairing modules, on plain records: nothing here knows a framework."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from padiff.align import pair_modules
from padiff.records import ModulePairs, ModuleTree, Rules
from tests.align.sketches import LEAVES, Sketch, renamed, sketches, tree_of, with_shared_wrapper, wrapped


def tags_of(base: Sketch, raw: Sketch) -> tuple[list[tuple[int, int]], set[int], set[int]]:
    """Pairs and lone modules by tag."""
    (base_tree, base_tags), (raw_tree, raw_tags) = tree_of(base), tree_of(raw, "paddle")
    found = pair_modules(base_tree, raw_tree)
    assert_complete(found, base_tree, raw_tree)
    pairs = [(base_tags[one], raw_tags[other]) for one, other in found.pairs]
    return pairs, {base_tags[i] for i in found.base_alone}, {raw_tags[i] for i in found.raw_alone}


def assert_complete(found: ModulePairs, base: ModuleTree, raw: ModuleTree) -> None:
    """Every node is in one pair or listed as alone, never both, never neither."""
    for tree, paired, alone in (
        (base, [pair[0] for pair in found.pairs], found.base_alone),
        (raw, [pair[1] for pair in found.pairs], found.raw_alone),
    ):
        assert sorted((*paired, *alone)) == list(range(len(tree.nodes)))


def assert_each_with_itself(base: Sketch, raw: Sketch) -> None:
    """All modules of base belong to themselves in raw, and only wrappers, tagged -1, stay alone."""
    pairs, base_alone, raw_alone = tags_of(base, raw)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    assert base_alone == set()
    assert raw_alone <= {-1}


@given(sketches())
def test_a_tree_paired_with_itself_leaves_nothing_alone(sketch: Sketch) -> None:
    assert_each_with_itself(sketch, sketch)


@given(sketches(), sketches())
def test_swapping_base_and_raw_swaps_the_pairs(one: Sketch, other: Sketch) -> None:
    (left, _), (right, _) = tree_of(one), tree_of(other)
    there, back = pair_modules(left, right), pair_modules(right, left)
    assert_complete(there, left, right)
    assert sorted((b, a) for a, b in there.pairs) == list(back.pairs)
    assert (there.base_alone, there.raw_alone) == (back.raw_alone, back.base_alone)


@given(sketches(), st.data())
def test_wrappers_leave_the_pairing_of_the_rest_unchanged(sketch: Sketch, data: st.DataObject) -> None:
    assert_each_with_itself(sketch, wrapped(sketch, lambda: data.draw(st.integers(0, 4))))


@given(sketches(), st.integers(0, 3), st.integers(1, 4))
def test_a_container_around_several_modules(sketch: Sketch, start: int, stop: int) -> None:
    assert_each_with_itself(sketch, with_shared_wrapper(sketch, start, stop))


@given(sketches())
def test_names_are_not_needed(sketch: Sketch) -> None:
    fresh = (f"n{i}" for i in itertools.count())
    assert_each_with_itself(sketch, renamed(sketch, lambda: next(fresh)))


@given(sketches(), st.data())
def test_neither_names_nor_wrappers_matter(sketch: Sketch, data: st.DataObject) -> None:
    fresh = (f"n{i}" for i in itertools.count())
    changed = wrapped(renamed(sketch, lambda: next(fresh)), lambda: data.draw(st.integers(0, 4)))
    assert_each_with_itself(sketch, changed)


@given(sketches(), st.data())
def test_names_tell_where_the_order_does_not(sketch: Sketch, data: st.DataObject) -> None:
    def shuffled(one: Sketch) -> Sketch:
        children = data.draw(st.permutations(one.children))
        return replace(one, children=tuple((name, shuffled(child)) for name, child in children))

    assert_each_with_itself(sketch, shuffled(sketch))


@given(st.permutations(range(6)))
def test_sizes_tell_where_names_and_order_do_not(order: list[int]) -> None:
    layers = [Sketch(i + 1, "Linear", "linear", ((i + 2, 9), (9,))) for i in range(6)]
    base = Sketch(0, "Net", children=tuple((f"a{i}", layer) for i, layer in enumerate(layers)))
    raw = Sketch(0, "Net", children=tuple((f"b{i}", layers[i]) for i in order))
    assert_each_with_itself(base, raw)


@given(sketches(), st.data())
def test_what_is_left_out_is_neither_paired_nor_alone(sketch: Sketch, data: st.DataObject) -> None:
    base, _ = tree_of(sketch)
    paths = [node.path for node in base.nodes if node.path]
    skipped = frozenset(data.draw(st.sets(st.sampled_from(paths))))
    found = pair_modules(base, base, Rules(base_skip=skipped, raw_skip=skipped))
    kept = {node.index for node in base.nodes if node.path not in skipped}
    assert {index for pair in found.pairs for index in pair} == kept
    assert found.base_alone == found.raw_alone == ()


def test_one_more_layer_shifts_numbers_but_not_pairs() -> None:
    layers = [Sketch(i + 1, "Linear", "linear", ((4, 4), (4,))) for i in range(3)]
    norm = Sketch(9, "LayerNorm", "layer_norm", ((4,), (4,)))
    base = Sketch(0, "Net", children=tuple((str(i), layer) for i, layer in enumerate(layers)))
    more = (layers[0], norm, *layers[1:])
    raw = Sketch(0, "Net", children=tuple((str(i), layer) for i, layer in enumerate(more)))
    pairs, base_alone, raw_alone = tags_of(base, raw)
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert (base_alone, raw_alone) == (set(), {9})


def test_one_more_block_shifts_numbers_but_not_pairs() -> None:
    def block(tag: int, size: int) -> Sketch:
        return Sketch(
            tag, "Block", children=(("fc", _linear(tag + 1, size, size)), ("act", Sketch(tag + 2, "A", "relu")))
        )

    def net(*tags: int) -> Sketch:
        blocks = tuple((str(i), block(tag, 5 if tag == 90 else 4)) for i, tag in enumerate(tags))
        return Sketch(0, "Net", children=(("blocks", Sketch(1, "ModuleList", "module_list", (), blocks)),))

    pairs, base_alone, raw_alone = tags_of(net(10, 20, 30), net(10, 90, 20, 30))
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    assert (base_alone, raw_alone) == (set(), {90, 91, 92})


def test_a_wrong_size_is_paired_where_it_stands() -> None:
    """A wrong size is a mistake to be named at its place, not a reason to shift what follows."""
    sizes = [(8, 8), (8, 8), (8, 8), (8, 8)]
    base = Sketch(0, "Net", children=tuple((f"a{i}", _linear(i + 1, *size)) for i, size in enumerate(sizes)))
    sizes[1] = (8, 6)
    raw = Sketch(0, "Net", children=tuple((f"b{i}", _linear(i + 1, *size)) for i, size in enumerate(sizes)))
    assert_each_with_itself(base, raw)


def _linear(tag: int, inputs: int, outputs: int) -> Sketch:
    return Sketch(tag, "Linear", "linear", ((inputs, outputs), (outputs,)))


def test_a_number_is_no_name() -> None:
    def net(middle: Sketch) -> Sketch:
        layers = (_linear(1, 4, 4), middle, _linear(3, 4, 4))
        return Sketch(0, "Net", children=tuple((str(i), layer) for i, layer in enumerate(layers)))

    pairs, base_alone, raw_alone = tags_of(
        net(Sketch(2, "Flatten", "flatten")), net(Sketch(5, "MaxPool", "max_pool2d"))
    )
    assert pairs == [(0, 0), (1, 1), (3, 3)]
    assert (base_alone, raw_alone) == ({2}, {5})


def test_an_activation_defined_elsewhere_in_its_parent() -> None:
    fc, act = _linear(2, 4, 4), Sketch(3, "GELU", "gelu")
    base = Sketch(0, "Net", children=(("block", Sketch(1, "Block", children=(("fc", fc), ("act", act)))),))
    raw = Sketch(0, "Net", children=(("block", Sketch(1, "Block", children=(("gelu", act), ("fc", fc)))),))
    assert_each_with_itself(base, raw)


def test_rules_come_first() -> None:
    base = Sketch(0, "Net", children=(("a", _linear(1, 4, 4)), ("b", _linear(2, 4, 4)), ("c", _linear(3, 4, 4))))
    tree, _ = tree_of(base)
    found = pair_modules(tree, tree, Rules(pairs=(("a", "b"), ("b", "a"))))
    assert found.pairs == ((0, 0), (1, 2), (2, 1), (3, 3))


@pytest.mark.parametrize("inside", [False, True])
def test_what_a_rule_pairs_is_a_unit(inside: bool) -> None:
    part = Sketch(1, "Block", children=(("x", _linear(2, 4, 4)), ("y", _linear(3, 4, 4))))
    other = Sketch(4, "Block", children=(("x", _linear(5, 4, 4)), ("y", _linear(6, 4, 4))))
    tree, _ = tree_of(Sketch(0, "Net", children=(("p", part), ("q", other))))
    found = pair_modules(tree, tree, Rules(pairs=(("p", "q"), ("q", "p"))), inside=inside)
    below = ((2, 5), (3, 6), (5, 2), (6, 3)) if inside else ()
    assert set(found.pairs) == {(0, 0), (1, 4), (4, 1), *below}
    assert found.base_alone == found.raw_alone == ()


def test_children_of_a_layer_matched_as_one_thing() -> None:
    attention = Sketch(1, "Attention", "attention", ((12, 4),), (("out", _linear(2, 4, 4)),), atomic=True)
    parts = tuple((name, _linear(10 + i, 4, 4)) for i, name in enumerate(("q", "k", "v", "out")))
    other = Sketch(1, "MultiHeadAttention", "attention", (), parts, atomic=True)
    base = Sketch(0, "Net", children=(("attn", attention),))
    raw = Sketch(0, "Net", children=(("attention", other),))
    pairs, base_alone, raw_alone = tags_of(base, raw)
    assert pairs == [(0, 0), (1, 1), (2, 13)]
    assert (base_alone, raw_alone) == (set(), {10, 11, 12})


def _long(blocks: int, every: int, shift: int) -> ModuleTree:
    """Blocks of all kinds of leaves under names that say nothing, every so often with one leaf more."""
    names = (f"n{i + shift}" for i in itertools.count())
    leaves = [Sketch(0, kind, layer, shapes) for kind, layer, shapes in LEAVES]
    children = []
    for i in range(blocks):
        more = [_linear(0, 7, 7)] if i % every == 0 else []
        children.append((next(names), Sketch(0, "Block", children=tuple((next(names), s) for s in leaves + more))))
    return tree_of(Sketch(0, "Net", children=tuple(children)))[0]


@pytest.mark.parametrize("blocks", [200, 800])
def test_long_models_that_differ_all_over_take_little_time(blocks: int) -> None:
    base, raw = _long(blocks, 7, 0), _long(blocks, 11, 1_000_000)
    start = time.process_time()
    found = pair_modules(base, raw)
    assert time.process_time() - start < 10
    assert_complete(found, base, raw)
    assert len(found.pairs) > 0.95 * min(len(base.nodes), len(raw.nodes))
