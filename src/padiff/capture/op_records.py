"""Makes records of the ops that were written down, when somebody asks for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, overload

from padiff.capture.held import Held
from padiff.capture.whose_code import line_at
from padiff.frameworks import Adapter
from padiff.frameworks.arguments import Options
from padiff.records import Call, Frame, ModuleNode, Slot

Outputs = Held | list[tuple[str, Held]]
"""What an op returned: a tensor, or several with their places."""


class Told(NamedTuple):
    """Where all about an op is wanted."""

    stack: tuple[Frame, ...]
    """The user's lines that led to it."""
    options: Options
    """What it was given besides tensors."""


class Written(NamedTuple):
    """An op as it was written down."""

    number: int
    op: Any
    name: str
    """What it is called, where that is not to be found out."""
    function: CodeType | None
    """The framework's function that the user called."""
    where: CodeType | Told
    """The code that called it; or more than that."""
    instruction: int
    begun: int
    inputs: list[Held]
    outputs: Outputs
    made: frozenset[int] | None = None
    """Where several ops are one: what any of them returned."""

    @property
    def made_here(self) -> list[tuple[str, Held]]:
        return self.outputs if isinstance(self.outputs, list) else [("", self.outputs)]

    def and_then(self, inputs: list[Held], outputs: Outputs) -> Written:
        """Two ops that one function of the framework runs are one op, which returns what the last of them does."""
        made = (self.made or frozenset()) | {one.number for _, one in self.made_here}
        known = made | {one.number for one in self.inputs}
        more = [one for one in inputs if one.number not in known]
        return self._replace(inputs=self.inputs + more, outputs=outputs, made=made)


@dataclass
class Run:
    """The run in which ops were written down."""

    over: bool = False


def op_calls(adapter: Adapter, run: Run, written: list[Written], index: int, node: ModuleNode) -> Sequence[Call]:
    """The ops of a call as records, made when somebody looks."""
    return _Later(functools.partial(_built, adapter, run, written, index, node), len(written))


def _built(adapter: Adapter, run: Run, written: list[Written], index: int, node: ModuleNode) -> list[Call]:
    found: list[Call] = []
    times: Counter[str] = Counter()
    names: dict[Any, tuple[str, str]] = {}
    lines: dict[tuple[int, int], tuple[Frame, ...]] = {}
    path = node.path
    for one in written:
        outputs = one.made_here
        if run.over:  # before, tensors are known by their identity
            for held in (*one.inputs, *(made for _, made in outputs)):
                held.detach()
        key = (one.name, one.op, id(one.function), one.made is not None)
        named = names.get(key)
        if named is None:
            kind = one.name or adapter.op_name(one.op, one.function, one.made is not None)
            named = names[key] = (kind, short_name(kind))
        kind, short = named
        occurrence = times[short]
        times[short] += 1
        again = f"#{occurrence}" if occurrence else ""
        place = (id(one.where), one.instruction)
        stack = lines.get(place)
        if stack is None:
            stack = lines[place] = (
                one.where.stack if isinstance(one.where, Told) else (_frame(one.where, one.instruction),)
            )
        found.append(
            Call(
                index=one.number,
                parent=index,
                node=node.index,
                path=f"{path}/{short}{again}",
                kind=kind,
                occurrence=occurrence,
                inputs=tuple([Slot(str(n), given.number, given, given.tracked) for n, given in enumerate(one.inputs)]),
                outputs=tuple([Slot(name, made.number, made, made.tracked) for name, made in outputs]),
                stack=stack,
                begun=one.begun,
                options=one.where.options if isinstance(one.where, Told) else (),
            )
        )
    return found


class _Later(Sequence[Call]):
    """Calls that are made when they are first looked at."""

    def __init__(self, make: Callable[[], list[Call]], length: int) -> None:
        self._make: Callable[[], list[Call]] | None = make
        self._calls: list[Call] = []
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Call: ...

    @overload
    def __getitem__(self, place: slice) -> list[Call]: ...

    def __getitem__(self, place: int | slice) -> Call | list[Call]:
        return self._all()[place]

    def __iter__(self) -> Iterator[Call]:
        return iter(self._all())

    def _all(self) -> list[Call]:
        if self._make is not None:
            self._calls, self._make = self._make(), None
        return self._calls


def short_name(kind: str) -> str:
    """The last part of an op's name, without the underscores of operators: ``matmul``, ``getitem``."""
    parts = kind.split(".")
    last = parts[3] if parts[:2] == ["torch", "ops"] and len(parts) > 3 else parts[-1]  # before its overload's name
    return last.strip("_") or last


def _frame(code: CodeType, instruction: int) -> Frame:
    return Frame(code.co_filename, line_at(code, instruction), code.co_name)
