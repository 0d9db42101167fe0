"""What a framework must be able to do for padiff. One class per framework answers; nothing else knows frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from padiff.frameworks.layers import LayerSpec
from padiff.records import Array

Enter = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
"""Called before a module runs: module, positional arguments, keyword arguments; may return others to run it on."""
Exit = Callable[[Any, Any], Any]
"""Called after a module ran: module, what it returned; may return something else for it, None leaves it."""
Fail = Callable[[Any], None]
"""Called when an exception leaves a module, innermost first."""


class Handle(Protocol):
    """Something attached that can be taken off again."""

    def remove(self) -> None: ...


class Adapter(Protocol):
    """Speaks for one framework. Tensors, modules and optimizers are opaque to everybody else."""

    name: str
    """The package's root name: ``torch``, ``paddle``."""

    # --- recognising things

    def is_model(self, thing: Any) -> bool: ...

    def is_tensor(self, thing: Any) -> bool: ...

    def is_optimizer(self, thing: Any) -> bool: ...

    # --- the model at rest

    def children(self, module: Any) -> list[tuple[str, Any]]:
        """Direct submodules by name, in definition order; one submodule under two names appears twice."""
        ...

    def own_parameters(self, module: Any) -> list[tuple[str, Any]]:
        """Parameters held by the module itself, not by its children."""
        ...

    def own_buffers(self, module: Any) -> list[tuple[str, Any]]:
        """State that is not trained (running statistics, tables), held by the module itself."""
        ...

    def is_computed(self, module: Any, name: str) -> bool:
        """Whether a buffer is left out of saved states: the module makes it itself, whenever it is built."""
        ...

    def describe(self, module: Any) -> str:
        """The module in one line, without its children."""
        ...

    def layer_table(self) -> Mapping[str, LayerSpec]:
        """Qualified class name to how that class stores its tensors; subclasses inherit by their bases."""
        ...

    def forward_signature(self, model: Any) -> Callable[..., Any]:
        """The function whose signature says what the model may be called with."""
        ...

    # What a module was built with. An adapter may leave these out: its modules' attributes speak for themselves then,
    # as ``padiff.frameworks.settings`` reads them.

    def settings(self, module: Any) -> dict[str, Any]:
        """Plain settings (numbers, strings, tuples of them) under the names all frameworks share: ``eps``, ``p``."""
        ...

    def changed_settings(self, module: Any, changes: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Inside, the module has other settings, given under the shared names and in the shared conventions."""
        ...

    def optimizer_settings(self, optimizer: Any) -> dict[str, Any]:
        """Plain settings of an optimizer under shared names (``lr``, ``weight_decay``, ``beta1``), and its kind."""
        ...

    def environment(self, model: Any) -> dict[str, str]:
        """Where and how the model runs, question to answer: ``version``, ``device``, ``threads``, and what decides
        about precision. An adapter may leave it out."""
        ...

    # --- tensors

    def shape(self, tensor: Any) -> tuple[int, ...]: ...

    def dtype(self, tensor: Any) -> str:
        """``float32``, ``bfloat16``, ``int64``: numpy's names, everywhere."""
        ...

    def to_numpy(self, tensor: Any) -> Array:
        """The elements on the host, sharing memory where possible; bfloat16 and fp8 as ml_dtypes."""
        ...

    def detach(self, tensor: Any) -> Any:
        """The same memory without the autograd graph."""
        ...

    def clone(self, tensor: Any) -> Any:
        """A detached copy whose memory nobody else writes."""
        ...

    def version(self, tensor: Any) -> int:
        """Grows whenever the framework sees the tensor written in place."""
        ...

    def storage(self, tensor: Any) -> int:
        """A number shared by all tensors that share memory."""
        ...

    def to_native(self, value: Any, like: Any = None, requires_grad: bool = False) -> Any:
        """A tensor of this framework with the elements of ``value`` (numpy array or any DLPack tensor), on the
        device of ``like`` (a model) where given, not sharing gradients. A tensor of this framework that already is
        where some of the model is stays there."""
        ...

    def assign(self, tensor: Any, value: Array) -> None:
        """Write ``value`` into the tensor, keeping its identity, dtype, device and gradient."""
        ...

    def flatten(self, tree: Any) -> list[tuple[str, Any]]:
        """Tensors inside a nested container with their place: tuple, list, dict, dataclass, namedtuple, outputs."""
        ...

    # --- running

    def attach(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterable[Handle]:
        """Have ``enter`` and then ``leave`` or ``fail`` called around every call of the modules; yields handles."""
        ...

    def attach_in_backward(self, modules: Iterable[Any], enter: Enter, leave: Exit, fail: Fail) -> Iterable[Handle]:
        """The same for calls that backward makes: the second forward of a checkpoint. An adapter of a framework that
        has none may leave it out."""
        ...

    def compiled(self, module: Any) -> str | None:
        """By what the module was compiled, in words; None where it was not. An adapter of a framework without
        compilers may leave this and ``eagerly`` out."""
        ...

    def eagerly(self) -> AbstractContextManager[Any]:
        """Inside, compiled modules run in their eager form."""
        ...

    def watch_writes(self, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Inside, ``about_to_write`` is called with a tensor just before an op writes into it."""
        ...

    def watch_reads(self, read: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Inside, ``read`` is called with tensors as ops, or modules' own code, take them up."""
        ...

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Handle | None:
        """Have ``callback`` called with the tensor's gradient in backward; None where it will have none."""
        ...

    def substitute(
        self, tensor: Any, value: Array, see: Callable[[Any], Array | None] | None = None, *, tracked: bool = False
    ) -> Any:
        """A tensor with the elements of ``value`` and the dtype, place and autograd history of ``tensor``.

        In backward ``see`` is given the gradient that arrives, and may return another to be passed on. ``tracked``
        asks for a tensor that takes a gradient even where ``tensor`` takes none.
        """
        ...

    def write(self, target: Any, source: Any) -> None:
        """Write a tensor into another as the model's own code would, autograd following."""
        ...

    def swap_elements(self, tensor: Any, other: Any) -> Any:
        """Let ``tensor`` hold the memory of ``other``, unseen by autograd; returns a tensor with what it held."""
        ...

    def no_grad(self) -> AbstractContextManager[Any]: ...

    def grad_enabled(self) -> bool: ...

    def autocast_dtype(self) -> str | None:
        """The dtype in which ops are computed here and now although their tensors have a wider one; None where they
        are not. An adapter of a framework that has no such thing may leave it out."""
        ...

    def requires_grad(self, tensor: Any) -> bool: ...

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        """The mean over all elements of all given tensors."""
        ...

    def backward(self, loss: Any) -> None: ...

    def watch_scaling(self, scaled: Callable[[float], None]) -> AbstractContextManager[None]:
        """Inside, ``scaled`` is called with the factor by which a gradient scaler multiplies a loss. An adapter of a
        framework that has no such thing may leave it out."""
        ...

    def gradient(self, parameter: Any) -> Any | None:
        """What backward has left, wherever the framework, or what is built on it, keeps it."""
        ...

    def set_gradient(self, parameter: Any, gradient: Any | None) -> None: ...

    def step(self, optimizer: Any) -> None:
        """Update the parameters once, then clear their gradients."""
        ...

    def device_of(self, model: Any) -> Any: ...

    # --- leaving things as they were

    def random_state(self) -> Any: ...

    def restore_random_state(self, state: Any) -> None: ...

    def is_training(self, module: Any) -> bool: ...

    def set_training(self, module: Any, flag: bool) -> None:
        """Set the module's own flag, not its children's."""
        ...

    def package_folders(self) -> tuple[str, ...]:
        """Folders whose code is the framework's, not the user's."""
        ...

    # --- numeric conventions

    def statistics_momentum(self, module: Any) -> float | None:
        """For a layer with running statistics: the share of the old value that an update keeps."""
        ...
