"""Converters written by hand: what the zoo holds padiff's own placing of weights against."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

State = dict[str, np.ndarray]
Converter = Callable[[State], State]

MATRICES = r"(?!.*(embed|wte|wpe|shared|relative_attention_bias)).*weight"
"""The weights of linear layers, by name: paddle stores them [in, out], torch [out, in]."""


Rule = tuple[str, str | Callable[[re.Match[str]], str]]


def renaming(*rules: Rule, turned: str = "", dropped: str = "") -> Converter:
    """All rules one after the other on every name; then two-dimensional tensors whose new name fits are transposed."""

    def convert(state: State) -> State:
        found: State = {}
        for name, array in state.items():
            if dropped and re.fullmatch(dropped, name):
                continue
            new = name
            for pattern, replacement in rules:
                new = re.sub(pattern, replacement, new)
            turn = bool(turned) and array.ndim == 2 and re.fullmatch(turned, new)
            found[new] = array.T if turn else array
        return found

    return convert


def chained(*steps: Converter) -> Converter:
    """One converter after the other."""

    def convert(state: State) -> State:
        for step in steps:
            state = step(state)
        return state

    return convert


def split(pattern: str, *names: str, axis: int = 0) -> Converter:
    """Tensors whose name fits are cut into equal parts along an axis; names may refer to the pattern's groups."""

    def convert(state: State) -> State:
        found: State = {}
        for name, array in state.items():
            match = re.fullmatch(pattern, name)
            if match is None:
                found[name] = array
                continue
            cut = axis if array.ndim > 1 else 0
            for new, part in zip(names, np.split(array, len(names), axis=cut), strict=True):
                found[match.expand(new)] = part
        return found

    return convert


def joined(name: str, *patterns: str) -> Converter:
    """Tensors joined along their first axis: the patterns' first group must be what belongs together.

    `{0}` in the name is the first pattern's match of its group 1, `{1}` of group 2, and so on.
    """

    def convert(state: State) -> State:
        found = dict(state)
        for old in state:
            match = re.fullmatch(patterns[0], old)
            if match is None:
                continue
            parts = [_sibling(state, pattern, match.groups()) for pattern in patterns]
            for part in parts:
                found.pop(part)
            found[name.format(*match.groups())] = np.concatenate([state[part] for part in parts])
        return found

    return convert


def _sibling(state: Mapping[str, np.ndarray], pattern: str, groups: tuple[str, ...]) -> str:
    for name in state:
        match = re.fullmatch(pattern, name)
        if match is not None and match.groups() == groups:
            return name
    raise KeyError(pattern)


def reshaped(pattern: str, change: Callable[[np.ndarray], np.ndarray]) -> Converter:
    """Tensors whose name fits, changed."""

    def convert(state: State) -> State:
        return {name: change(array) if re.fullmatch(pattern, name) else array for name, array in state.items()}

    return convert


BATCH_NORM = (
    (r"running_mean$", "_mean"),
    (r"running_var$", "_variance"),
)
"""paddle's names for what torch calls running statistics."""
COUNTED = r".*num_batches_tracked"
