"""What proxies were told about their layers, as rules for the engine."""

from __future__ import annotations

from dataclasses import replace

from padiff.autodiff.mapped_layers import paired
from padiff.autodiff.proxy import LiveProxy
from padiff.frameworks.tree import LiveTree
from padiff.records import Rules


def weight_rules(rules: Rules, base: LiveTree, raw: LiveTree) -> Rules:
    """For filling raw: layers on a black list are left alone, layers of the maps belong together."""
    return replace(
        rules,
        pairs=(*rules.pairs, *_pairs(base, raw)),
        base_skip=rules.base_skip | (base.lists.unfilled(base) if isinstance(base, LiveProxy) else frozenset()),
        raw_skip=rules.raw_skip | (raw.lists.unfilled(raw) if isinstance(raw, LiveProxy) else frozenset()),
    )


def call_rules(rules: Rules, base: LiveTree, raw: LiveTree) -> Rules:
    """For comparing: of the rules for weights, with what the lists leave out. The model itself always counts."""
    return replace(rules, base_skip=rules.base_skip | _left_out(base), raw_skip=rules.raw_skip | _left_out(raw))


def _left_out(live: LiveTree) -> frozenset[str]:
    return live.lists.left_out(live) - {""} if isinstance(live, LiveProxy) else frozenset()


def _pairs(base: LiveTree, raw: LiveTree) -> tuple[tuple[str, str], ...]:
    if not isinstance(base, LiveProxy) or not isinstance(raw, LiveProxy):
        return ()
    chosen = base.mapped.chosen and raw.mapped.chosen
    return paired(base.mapped.paths(base), raw.mapped.paths(raw), chosen=chosen)
