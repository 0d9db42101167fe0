"""Outputs that base returns and raw doesn't, followed back in raw all the same, from where it makes them.

Where no loss is given, backward begins with every output along a direction of chance. Raw's author may return fewer of
them (logits, and not the encoder's state beside them), and mostly makes them for all that: the tensor that stands
beside base's is followed along the same direction. Otherwise base would have to run again without them, and be shaken
again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from padiff.align import pair_slots
from padiff.capture.held import Held
from padiff.capture.observers import Observer
from padiff.capture.one_step import Probed
from padiff.engine.projection import Projection
from padiff.records import Call, Slot, StepTrace


class Beyond:
    """Tells somebody of everything, and keeps the tensors of raw that stand beside base's outputs of some ``names``."""

    def __init__(
        self,
        whom: Observer,
        names: Collection[str],
        base: StepTrace,
        projection: Projection,
        partner: Callable[[Call], Call | None],
    ) -> None:
        """``partner`` says beside which call of base's the one stood that was told of last."""
        self._whom, self._projection, self._partner = whom, projection, partner
        root = base.root
        outputs = () if root is None else root.outputs
        self._names = {one.tensor: one.name for one in outputs if one.name in names and projection.follows(one.name)}
        self._found: dict[int, Probed] = {}
        self.on_tag, self.on_gradient, self.before_write = whom.on_tag, whom.on_gradient, whom.before_write

    def on_call(self, call: Call) -> None:
        self._whom.on_call(call)
        base = self._partner(call) if call.parent >= 0 else None  # what the model itself returns is not what is missing
        if base is None or not any(slot.tensor in self._names for slot in base.outputs):
            return
        pairs, _, _ = pair_slots(base.outputs, call.outputs)
        for one, other in pairs:
            probed = self._probed(one, other) if one.tensor in self._names else None
            if probed is not None:  # the last counts: a copy that is handed on sends back to what it was made of
                self._found[one.tensor] = probed

    def _probed(self, base: Slot, raw: Slot) -> Probed | None:
        """A tensor of raw as it is in the run, with its direction."""
        if not raw.tracked or not isinstance(raw.value, Held) or raw.value.overwritten:
            return None
        live, drawn = raw.value.live(), self._projection.along(self._names[base.tensor], raw.value)
        return None if live is None or drawn is None else (live, drawn)

    def found(self) -> list[Probed] | None:
        """Those tensors with their directions; None where there is none for one of the outputs."""
        return list(self._found.values()) if len(self._found) == len(self._names) else None
