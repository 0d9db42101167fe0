"""Why: every place that was found, with its causes."""

from __future__ import annotations

from dataclasses import replace

from padiff.diagnose import divergences_of
from padiff.diagnose.causes import differing_settings, explain
from padiff.diagnose.scene import Scene
from padiff.engine.localise import Located
from padiff.records import Divergence

MOST_EXPLAINED = 3
"""Places whose causes are looked for; trying them takes runs of the model."""


def explained_places(located: Located) -> list[Divergence]:
    """All places, the first of them with causes."""
    found: list[Divergence] = []
    for place, (divergence, fault) in enumerate(divergences_of(located.faults, located.state, located.pairs)):
        scene: Scene | None = None
        if place < MOST_EXPLAINED:
            scenes = located.scenes
            scene = scenes.of_state(divergence.comparison) if fault is None else scenes.of_fault(fault)
        found.append(divergence if scene is None else with_causes(divergence, scene))
    return found


def with_causes(divergence: Divergence, scene: Scene) -> Divergence:
    settings = differing_settings(scene.base_settings, scene.raw_settings)
    return replace(divergence, causes=explain(scene), settings=settings)
