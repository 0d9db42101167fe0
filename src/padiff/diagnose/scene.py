"""What is known of the place where two models part: all that a cause may look at, and try."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from padiff.records import Array, DrawGap, Phase, Role, Side


@dataclass(frozen=True)
class Scene:
    """One tensor of one place, base's beside raw's, both in raw's layout, and what they were made of.

    Raw's module was fed base's inputs, so that what differs arose here. ``settings`` are what a module was built with,
    under one name in all frameworks (``eps``, ``p``, ``stride``).
    """

    phase: Phase
    role: Role
    """``output``: what the module returns. ``input`` (forward): what the module's own code hands to a child of it."""
    base_kind: str
    raw_kind: str
    layer: str | None
    """Base's framework-neutral layer name (``linear``, ``layernorm``), where it is a known layer."""
    expected: Array
    """Base's tensor."""
    found: Array
    """Raw's."""
    given: Mapping[str, Array] = field(default_factory=dict)
    """What base's module was given, by name; raw's was fed the same."""
    around: Mapping[str, Array] = field(default_factory=dict)
    """For a module's own code: what its children had returned by then, by path, base's values; raw's where base has no
    such child."""
    in_base: Mapping[str, str] = field(default_factory=dict)
    """What base calls those of ``around`` that it has beside raw's, by raw's path: its names may say more."""
    handed: Mapping[str, Array] = field(default_factory=dict)
    """What the children had been given first, by path: sums that no child returns."""
    base_weights: Mapping[str, Array] = field(default_factory=dict)
    raw_weights: Mapping[str, Array] = field(default_factory=dict)
    """The module's own parameters and buffers, by name, each in its own framework's layout."""
    inner_weights: Mapping[str, Array] = field(default_factory=dict)
    """Those of the modules inside raw's, by path below it and name, where these are few; else of its last children."""
    base_settings: Mapping[str, Any] = field(default_factory=dict)
    raw_settings: Mapping[str, Any] = field(default_factory=dict)
    agrees: Callable[[Array, Array], bool] = lambda base, raw: False
    """Whether two tensors agree as closely as this place allows."""
    narrow: float = 0.0
    """Where one of the models computes in a narrower dtype on purpose, the spacing of that."""
    retry: Callable[[Mapping[str, Any]], Array | None] = lambda changes: None
    """Raw's tensor again, with some of raw's settings changed, the module being fed base's inputs; None where that
    cannot be done."""
    repeats: Callable[[], bool] = lambda: True
    """Whether base's module returns the same when it runs again on the same inputs."""
    tensor: str = ""
    """Name of a parameter or buffer (``weight``, ``running_var``), or of a slot."""
    gradients: Mapping[str, Array] = field(default_factory=dict)
    """Backward and gradient: gradients of what the module returned, which agree, by slot; base's values."""
    raw_gradients: Mapping[str, Array] = field(default_factory=dict)
    """Loss: what raw's loss sends back to what the model returned, by slot; ``gradients`` are what base's does."""
    unreached: tuple[str, ...] = ()
    """Backward: modules inside to whose outputs one side sends gradients and the other none, in the order of calls."""
    unreached_in: Side = "raw"
    """The side that sends none there."""
    before: Array | None = None
    """Weight and buffer: what the tensor held before the step, on both sides. Gradient: that of the step before."""
    gradient: Array | None = None
    """Weight: the parameter's gradient in that step, on both sides; settings are the optimizers' then."""
    moment: str = ""
    """Weight: where the tensor is not the weight, but what the optimizers remember of it, which of that: ``moment1``,
    ``moment2``, ``velocity``."""
    start: Array | None = None
    """Weight: what the tensor held before the first step, where everything since is known."""
    history: tuple[Array, ...] = ()
    """Weight: the parameter's gradients in all steps since, the last included."""
    clipped: tuple[float, float] | None = None
    """Weight: what base's and raw's optimizer were given of the only step's gradient, as factors, where it is known."""
    siblings: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    """Weights of other modules of base like this one, by path and name, in base's layout."""
    draws: tuple[DrawGap, ...] = ()
    """Random draws of this place that do not correspond."""
    base_ties: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    raw_ties: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a weight of this module to the other paths under which the same tensor is known."""
    parted: tuple[str, ...] = ()
    """Whether raw keeps in several tensors what base keeps in one."""
    raw_layer: str | None = None
    """Raw's framework-neutral layer name, where it is a known layer."""
