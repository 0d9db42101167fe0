"""Graphs that torch.export or torch.fx made of a model, run module by module: every node remembers the module in whose
code it was made, so that calls can be told from each other, and hooked, though no code of the modules is left."""

from __future__ import annotations

import functools
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from padiff.frameworks.lookup import class_named
from padiff.records import UNORDERED

_LINES = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_OWN_CODE = str(Path(torch.__file__).parent) + os.sep

Place = tuple[str, str]
"""Key of a call among all calls of the model, and the path of its module."""


class Part(torch.nn.Module):
    """A module of the model that a graph was made of: its tensors are the graph's, its code is some of the nodes."""

    def __init__(self, tensors: Any, written_as: type) -> None:
        super().__init__()
        if tensors is not None:
            for kept in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
                self.__dict__[kept] = getattr(tensors, kept)
        self._of = _Of(written_as)

    def forward(self, **named: Any) -> Any:
        of = self._of
        region, of.next = of.next or of.regions[0], None
        given = dict(zip(region.inputs, named.values(), strict=True))
        source = {id(tensor): node for node, tensor in given.items()}
        env = _run(region, dict(given))
        passed = {node: source[id(env[node])] for node in region.outputs if id(env[node]) in source}
        region.passed = passed if len(passed) < len(region.outputs) else {}
        return _named([env[node] for node in region.outputs if node not in region.passed])

    def extra_repr(self) -> str:
        return "as exported"


class _Of:
    """What a part knows, out of sight of who reads settings from attributes."""

    def __init__(self, written_as: type) -> None:
        self.written_as = written_as
        self.regions: list[_Region] = []
        self.next: _Region | None = None
        """The call that begins; None where somebody calls the part by itself."""
        self.opened: Opened | None = None


@dataclass(eq=False)
class _Region:
    """One call: its own nodes and the calls inside, in order."""

    place: Place
    graph: torch.fx.GraphModule
    part: Part | None = None
    items: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    passed: dict[Any, Any] = field(default_factory=dict)
    """Of the last run: nodes that came to nothing but what was given, as a cast to the same dtype does, and what that
    was. What others take from there they would have taken from outside."""

    def nodes(self) -> Iterator[Any]:
        for item in self.items:
            if isinstance(item, _Region):
                yield from item.nodes()
            else:
                yield item


class Opened:
    """A graph with its modules told apart."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self._graph = graph
        self.children: dict[str, Any] = {}
        classes: dict[str, type] = {}
        self._root = _regions(graph, classes)
        self._modules(graph, classes)
        for region in _inner(self._root):
            part = self._at(region.place[1])
            region.part = part
            part._of.regions.append(region)
            _borders(region)

    def _modules(self, graph: torch.fx.GraphModule, classes: dict[str, type]) -> None:
        """Parts for all that holds tensors or was called, in the order of the graph's own modules, then of calls."""
        called = {node.target for node in graph.graph.nodes if node.op == "call_module"}
        for path, module in graph.named_modules():
            if path and not any(path == one or path.startswith(f"{one}.") for one in called):
                self._put(path, Part(module, classes.get(path, type(module))))
            elif path in called and not _checks(module):
                self._put(path, module)
        for path, cls in classes.items():
            if path and self._at(path) is None:
                self._put(path, Part(None, cls))

    def _put(self, path: str, module: Any) -> None:
        if isinstance(module, Part):
            module._of.opened = self
        parent, _, name = path.rpartition(".")
        if not parent:
            self.children[name] = module
            return
        if self._at(parent) is None:
            self._put(parent, Part(None, torch.nn.Module))
        self._at(parent)._modules[name] = module

    def _at(self, path: str) -> Any:
        first, *rest = path.split(".")
        found = self.children.get(first)
        for name in rest:
            found = None if found is None else found._modules.get(name)
        return found

    def in_parts(self) -> _InParts:
        """Have the graph run part by part, until that is taken off again."""
        return _InParts(self._graph, _outer(self._graph, self._root))


class _InParts:
    """A handle: the graph runs as it would, but through the calls of its parts."""

    def __init__(self, graph: torch.fx.GraphModule, outer: torch.fx.GraphModule) -> None:
        self._graph, self._before = graph, vars(graph).get("forward")
        vars(graph)["forward"] = outer.forward

    def remove(self) -> None:
        if self._before is None:
            vars(self._graph).pop("forward", None)
        else:
            vars(self._graph)["forward"] = self._before


def children(graph: torch.fx.GraphModule) -> list[tuple[str, Any]]:
    """The modules of a graph, made anew; its own where its nodes don't tell where they come from."""
    if not opens(graph):
        return [(name, child) for name, child in graph._modules.items() if child is not None]
    return list(Opened(graph).children.items())


def opens(module: Any) -> bool:
    """Whether it is a graph whose nodes tell where they come from."""
    return isinstance(module, torch.fx.GraphModule) and any(
        node.meta.get("nn_module_stack") for node in module.graph.nodes
    )


def keeps_lines(module: Any) -> bool:
    """Whether it is known of which lines of the user's a module's code was made."""
    if _ordinary(type(module)):
        return True
    nodes: Iterable[Any] = ()
    if isinstance(module, Part):
        nodes = (node for region in module._of.regions for node in region.items if not isinstance(node, _Region))
    elif isinstance(module, torch.fx.GraphModule) and opens(module):
        nodes = module.graph.nodes
    return any(node.meta.get("stack_trace") for node in nodes)


def in_parts(modules: Iterable[Any]) -> Iterator[_InParts]:
    """Have the graphs that some of the modules are parts of run part by part; yields handles."""
    graphs = {id(module._of.opened): module._of.opened for module in modules if isinstance(module, Part)}
    yield from (graph.in_parts() for graph in graphs.values() if graph is not None)


def _look_at(kind: type) -> bool:
    others = (Part, torch.fx.GraphModule, torch.jit.ScriptModule)
    return not issubclass(kind, others) and kind.__module__ != "torch.export.unflatten"


_ordinary: Callable[[Any], bool] = functools.lru_cache(maxsize=4096)(_look_at)
"""Whether modules of a class are what their author wrote."""


def written_as(module: Any) -> type | None:
    """The class that a module was written as, where a compiler has put another in its place."""
    if _ordinary(type(module)):
        return None
    if isinstance(module, Part):
        return module._of.written_as
    if isinstance(module, torch.fx.GraphModule):
        stacks = (node.meta.get("nn_module_stack") or {} for node in module.graph.nodes)
        whole = next((cls for stack in stacks for path, cls in stack.values() if not path), None)
        return class_named(whole, torch.nn.Module) if isinstance(whole, str) else whole
    if isinstance(module, torch.jit.ScriptModule):
        return class_named(_without_mangling(module), torch.nn.Module)
    if type(module).__module__ == "torch.export.unflatten":
        return class_named(module._ty, torch.nn.Module) if isinstance(getattr(module, "_ty", None), str) else None
    return None


def _without_mangling(module: Any) -> str:
    try:
        name = str(module._c._type().qualified_name())
    except (AttributeError, RuntimeError):
        return str(getattr(module, "original_name", ""))
    parts = name.removeprefix("__torch__.").split(".")
    return ".".join(part for part in parts if not part.startswith("___torch_mangle"))


# --- from nodes to calls


def _regions(graph: torch.fx.GraphModule, classes: dict[str, type]) -> _Region:
    """Calls by what each node says of itself; ``classes`` is told which class every module was written as."""
    root = _Region(("", ""), graph)
    under_way, ended = [root], set[Place]()
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        stack = _stack(node, classes)
        depth = 1
        while depth < len(under_way) and depth <= len(stack) and under_way[depth].place == stack[depth - 1]:
            depth += 1
        ended.update(region.place for region in under_way[depth:])
        del under_way[depth:]
        for place in stack[depth - 1 :]:
            if place in ended:  # some node was moved away from its likes: it belongs to whoever is at work now
                break
            region = _Region(place, graph)
            under_way[-1].items.append(region)
            under_way.append(region)
        under_way[-1].items.append(node)
    return root


def _stack(node: Any, classes: dict[str, type]) -> list[Place]:
    """The calls in which a node was made, outermost first, without the model's own."""
    found: list[Place] = []
    checks = node.op == "call_module" and _checks(_attribute(node))
    for key, (path, cls) in ({} if checks else node.meta.get("nn_module_stack") or {}).items():
        if path and not (node.op == "call_module" and path == node.target):
            classes.setdefault(path, cls if isinstance(cls, type) else class_named(str(cls), torch.nn.Module))
            found.append((key, path))
    return found


def _checks(module: Any) -> bool:
    """Whether a module is no part of the model, but looks at what the model is given."""
    return isinstance(module, torch.fx.GraphModule) or type(module).__module__.startswith("torch.export")


def _attribute(node: Any) -> Any:
    return operator.attrgetter(node.target)(node.graph.owning_module)


def _inner(region: _Region) -> Iterator[_Region]:
    for item in region.items:
        if isinstance(item, _Region):
            yield item
            yield from _inner(item)


def _borders(region: _Region) -> None:
    """What a call was given, which is what its nodes take from outside, and returned: what others take, or nobody."""
    own = dict.fromkeys(region.nodes())
    taken = dict.fromkeys(one for node in own for one in node.all_input_nodes)
    region.inputs = [node for node in taken if node not in own and node.op != "get_attr"]
    region.outputs = [
        node for node in own if any(user not in own for user in node.users) or (not node.users and not _writes(node))
    ]


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and (schema.is_mutable or not schema.returns)


# --- running


def _outer(graph: torch.fx.GraphModule, root: _Region) -> torch.fx.GraphModule:
    """The same signature and the same container of outputs, with all nodes in between as one."""
    outer = torch.fx.Graph()
    outer._codegen = graph.graph._codegen
    copies: dict[Any, Any] = {}
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in given:
        copies[node] = outer.node_copy(node)
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    wanted = [node for node in end.all_input_nodes if node not in copies]

    def everything(*values: Any) -> Sequence[Any]:
        env = _run(root, dict(zip(given, values, strict=True)))
        return [_attribute(node) if node.op == "get_attr" else env[node] for node in wanted]

    whole = outer.call_function(everything, tuple(copies[node] for node in given))
    for place, node in enumerate(wanted):
        copies[node] = outer.call_function(operator.getitem, (whole, place))
    outer.output(torch.fx.map_arg(end.args[0], copies.__getitem__))
    return torch.fx.GraphModule(torch.nn.Module(), outer)


def _run(region: _Region, env: dict[Any, Any]) -> dict[Any, Any]:
    """Every node in order, and calls of parts among them; says what each node has made."""

    def value(node: Any) -> Any:
        return env[node] if node in env else _attribute(node)

    for item in region.items:
        if isinstance(item, _Region):
            assert item.part is not None
            item.part._of.next = item
            found = item.part(**_named([value(node) for node in item.inputs]))
            made = [node for node in item.outputs if node not in item.passed]
            env.update(zip(made, found.values(), strict=True))
            env.update({node: value(source) for node, source in item.passed.items()})
            continue
        args, kwargs = torch.fx.map_arg((item.args, item.kwargs), value)
        if item.op == "call_function":
            env[item] = _caller(item.meta.get("stack_trace"))(item.target, args, kwargs)
        elif item.op == "call_method":
            env[item] = _caller(item.meta.get("stack_trace"))(getattr(args[0], item.target), args[1:], kwargs)
        else:
            env[item] = _attribute(item)(*args, **kwargs)
    return env


@functools.lru_cache(maxsize=4096)
def _caller(trace: str | None) -> Callable[..., Any]:
    """What calls a node's function: code at the line of the user's of which the node was made, where that is known, so
    that whoever looks up the stack finds it there."""
    lines = [one for one in _LINES.findall(trace or "") if not one[0].startswith(_OWN_CODE)]
    if not lines:
        return lambda function, args, kwargs: function(*args, **kwargs)
    file, line, name = lines[-1]
    name = name if name.isidentifier() else "forward"
    made: dict[str, Any] = {}
    source = "\n" * (int(line) - 1) + f"def {name}(function, args, kwargs): return function(*args, **kwargs)"
    exec(compile(source, file, "exec"), made)
    caller: Callable[..., Any] = made[name]
    return caller


def _named(values: Sequence[Any]) -> dict[str, Any]:
    """Tensors whose places in the call's arguments, or in what it returned, are lost."""
    return {f"{UNORDERED}{place}": value for place, value in enumerate(values)}
