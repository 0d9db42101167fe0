"""Why: every place that was found, with its causes."""

from __future__ import annotations

from dataclasses import replace

from padiff.diagnose import divergences_of
from padiff.diagnose.causes import differing_settings, explain
from padiff.diagnose.scene import Scene
from padiff.engine.localise import Located
from padiff.records import Array, Divergence
from padiff.report.picture import picture_of

MOST_EXPLAINED = 3
"""Places whose causes are looked for; trying them takes runs of the model."""
MOST_DRAWN = 20
"""Places that are given a picture of their error."""


def explained_places(located: Located) -> list[Divergence]:
    """All places, the first of them with causes."""
    found: list[Divergence] = []
    for place, (divergence, fault) in enumerate(divergences_of(located.faults, located.state, located.pairs)):
        scene: Scene | None = None
        if place < MOST_EXPLAINED:
            scenes = located.scenes
            scene = scenes.of_state(divergence.comparison) if fault is None else scenes.of_fault(fault)
        if place < MOST_DRAWN:
            seen = fault or scene
            if seen is not None:
                divergence = drawn(divergence, seen.expected, seen.found)
        found.append(divergence if scene is None else with_causes(divergence, scene))
    return found


def drawn(divergence: Divergence, expected: Array | None, found: Array | None) -> Divergence:
    """With a picture of the error, where both tensors are at hand in one layout."""
    comparison = replace(divergence.comparison, picture=picture_of(expected, found))
    return replace(divergence, comparison=comparison)


def with_causes(divergence: Divergence, scene: Scene) -> Divergence:
    settings = differing_settings(scene.base_settings, scene.raw_settings)
    return replace(divergence, causes=explain(scene), settings=settings)
