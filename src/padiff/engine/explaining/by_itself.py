"""A layer of the framework's, called by itself with other settings on what it was given: no model runs for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from padiff.capture.session import Session
from padiff.frameworks.lookup import has_code
from padiff.frameworks.settings import with_settings
from padiff.records import Array, Call


class ByItself:
    """Raw's layer at a place, if it can be called apart from its model."""

    def __init__(self, raw: Session, call: Call, name: str, agrees: Callable[[Array, Array], bool]) -> None:
        """``name`` is the output's that is looked at, ``agrees`` says whether one is what another should be."""
        self._raw, self._call, self._name, self._agrees = raw, call, name, agrees
        self._tells: bool | None = None

    def with_settings(self, changes: Mapping[str, Any]) -> Array | None:
        """What the layer returns then; None where calling it says nothing, or it cannot be called so."""
        if self._tells is None:
            self._tells = self._may_be_called() and self._does_the_same()
        return self._called(changes) if self._tells else None

    def _may_be_called(self) -> bool:
        """Whether it takes one tensor and returns one, and the framework alone knows what happens between."""
        live, call = self._raw.live, self._call
        given, made = call.inputs, call.outputs
        return (
            self._raw.listen is None  # what it draws belongs to its place in a run
            and not live.tree.nodes[call.node].children
            and not has_code(live.adapter, live.modules[call.node])
            and [slot.name for slot in given] == ["0"]
            and [slot.name for slot in made] == [self._name]
            and not any(slot.value.overwritten for slot in (*given, *made))
        )

    def _does_the_same(self) -> bool:
        """Whether it returns what it did in the run, as it is set: it may have been given more than a tensor."""
        found = self._called({})
        return found is not None and self._agrees(self._call.outputs[0].value.numpy(), found)

    def _called(self, changes: Mapping[str, Any]) -> Array | None:
        live = self._raw.live
        adapter, module, given = live.adapter, live.modules[self._call.node], self._call.inputs[0].value
        with self._raw.again(), adapter.no_grad(), with_settings(adapter, module, changes):
            output = module(adapter.to_native(np.array(given.numpy()), like=live.model))
            return np.array(adapter.to_numpy(output)) if adapter.is_tensor(output) else None
