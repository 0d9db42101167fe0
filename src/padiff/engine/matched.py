"""What a comparison stands on: where raw's weights come from, and which modules belong together."""

from __future__ import annotations

from dataclasses import dataclass

from padiff.records import ModulePairs, WeightPlan


@dataclass
class Matched:
    """Shared by all that run and compare; the first run of raw may show it to be otherwise."""

    plan: WeightPlan
    modules: ModulePairs
    twins: bool
    """Both models name their tensors alike."""
