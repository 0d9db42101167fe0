"""What a framework must be able to do for padiff. One class per framework answers; nothing else knows frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

from padiff.frameworks.cancelling_ops import Told
from padiff.frameworks.draws import Dice
from padiff.frameworks.layers import LayerSpec
from padiff.records import Array, Moves

Enter = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]] | None]
"""Called before a module runs: module, positional arguments, keyword arguments; may return others to run it on."""
Exit = Callable[[Any, Any], Any]
"""Called after a module ran: module, what it returned; may return something else for it, None leaves it."""
Fail = Callable[[Any], None]
"""Called when an exception leaves a module, innermost first."""
See = Callable[[Any], Array | None]
"""Given the gradient that arrives at a tensor; may return another for backward to go on with."""


class OpWatcher(Protocol):
    """Told of the ops that a thread calls. ``frame`` is whose line calls the framework, or runs inside of it."""

    def seen(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, output: Any, frame: FrameType
    ) -> None:
        """An op that writes nothing has ended."""
        ...

    def begin(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        """An op that may write begins; returns a token, None for an op not wanted."""
        ...

    def end(self, token: Any, output: Any, args: tuple[Any, ...]) -> None:
        """It has ended; not called for one that is not wanted."""
        ...


class LibraryOp(str):
    """The name of an op that a library brings with it, called through a generated function of that name."""


class GradientSink(Protocol):
    """Where gradients are put down by the numbers of their tensors, while they count."""

    taking: bool
    told: dict[int, Any]
    versions: dict[int, int]
    """Of those that had been written before."""
    made: Callable[[int, Any], None] | None
    """Whom to tell besides."""


class Handle(Protocol):
    """Something attached that can be taken off again."""

    def remove(self) -> None: ...


class Seen(Protocol):
    """A tensor that was seen in a run."""

    number: int
    tracked: bool
    """Whether it takes part in backward."""

    @property
    def wanted(self) -> bool:
        """Somebody else has the tensor, too."""
        ...

    def live(self) -> Any | None:
        """The framework's tensor, while no copy of it was taken."""
        ...


Follow = Callable[[Iterable[tuple[Any, Seen]], dict[int, Handle | None]], None]
"""Has the gradients of tensors told, under the numbers they were seen with. Those that take part in backward are
marked, and their numbers put down, with what takes their hook off; that of many may be put under one, of none of
them."""


class Measured(NamedTuple):
    """How far two tensors are apart, as sums over all elements, which are finite."""

    size: int
    peak: float
    """Largest ``abs(raw - base)``."""
    gap_mean: float
    base_mean: float
    """Means of ``abs(raw - base)`` and ``abs(base)``."""
    gap_rms: float
    base_rms: float
    raw_rms: float
    excess: float
    """Largest ``abs(raw - base) - rtol * abs(base)``, where an rtol was given."""


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

    def written_as(self, module: Any) -> type | None:
        """The class a module was written as, where a compiler has put another in its place; may be left out."""
        ...

    def keeps_lines(self, module: Any) -> bool:
        """Whether it is known which lines of the user's a module's code comes from: not of all that compilers made; may
        be left out."""
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

    # Tensors that are not on the host may be worked with where they lie. An adapter may leave these out: elements are
    # fetched then.

    def elsewhere(self, tensor: Any) -> bool:
        """Whether a tensor is one of these."""
        ...

    def measure(self, base: Any, raw: Any, rtol: float | None) -> Measured | None:
        """Sums over two tensors of one shape; None where they lie on the host, apart, or are not all finite."""
        ...

    def made_of(self, array: Array) -> Any:
        """A tensor on the host with an array's elements, or the array itself, which is nobody else's."""
        ...

    def multiplied(self, tensor: Any, moves: Callable[[], Moves]) -> Any | None:
        """A copy, its numbers moved; None on the host, where nobody asks how."""
        ...

    def take(self, target: Any, source: Any, before: Callable[[], None]) -> bool:
        """Write one tensor's elements into another, where they differ; ``before`` is called first. False on the host,
        where nothing was done."""
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

    def runs_in_parts(self, module: Any) -> bool:
        """Whether a compiled module still knows which of its code belongs to which module: ``children`` are these
        then, and attached to, they are called as the code is run. May be left out."""
        ...

    def run_in_parts(self, modules: Iterable[Any]) -> Iterable[Handle]:
        """Have compiled modules that some of these are parts of run part by part, until the handles come off:
        ``attach`` does so itself, and comes too late for a call that is under way. May be left out."""
        ...

    def watch_writes(self, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Inside, ``about_to_write`` is called with a tensor just before an op writes into it."""
        ...

    def watch_reads(self, read: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Inside, ``read`` is called with tensors as ops, or modules' own code, take them up."""
        ...

    def order_of_use(self, module: Any) -> list[Any]:
        """The tensors that compiled code without readers takes up, first used first; may be left out."""
        ...

    def kept_for_backward(self) -> AbstractContextManager[None]:
        """Inside, layers that in evaluation mode keep nothing for backward keep it; may be left out."""
        ...

    # What a model draws. An adapter may leave this out: both models draw for themselves then.

    def watch_draws(self, dice: Dice) -> AbstractContextManager[None]:
        """Inside, ``dice`` is told of all random numbers as they are drawn in this thread, and of uniform ones being
        held against a bound; what it returns takes their place. The generators move as if nobody listened."""
        ...

    # Ops. An adapter may leave these out: then modules are all that is seen.

    tensor_type: type
    """The class of all tensors."""
    function_type: type
    """The class of functions with a backward of their own, which are called by ``apply``; may be left out."""

    def watch_ops(self, watcher: OpWatcher, about_to_write: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Inside, ``watcher`` is told of every op of this thread, wherever it is called, and ``about_to_write`` is
        called as by ``watch_writes``, after ``begin``."""
        ...

    def cancelling(self, told: Told) -> AbstractContextManager[None]:
        """Inside, ``told`` hears of functions of this thread that may work with larger numbers than they return, after
        each: its kind (see ``capture.cancelling``), what it was given by position, and what it returned. An adapter may
        leave it out."""
        ...

    def op_name(self, op: Any, function: CodeType | None, several: bool) -> str:
        """The name people know an op by; ``function`` is the framework's function that the user called to get there,
        ``several`` says that it ran more ops than this one."""
        ...

    def layer_folders(self) -> tuple[str, ...]:
        """Folders with the code of the framework's own layers."""
        ...

    def wrapper_files(self) -> tuple[str, ...]:
        """Files of decorators, which stand around the framework's functions on the stack."""
        ...

    def on_gradient(self, tensor: Any, callback: See) -> Handle | None:
        """Have ``callback`` called with the tensor's gradient in backward; None where it will have none.

        What it returns, if anything, is what backward goes on with."""
        ...

    def before_written(self, tensor: Any, handle: Handle) -> Handle:
        """What tells the gradient of a hooked tensor from now on, since it is about to be written.

        An adapter may leave it out where a hook stays with the history that a tensor had."""
        ...

    def keeping_gradients(self, sink: GradientSink) -> Follow:
        """How to follow many tensors whose gradients are only put down.

        Optional, and only there to be quick: ``on_gradient`` does the same."""
        ...

    def substitute(self, tensor: Any, value: Array, see: See | None = None, *, tracked: bool = False) -> Any:
        """A tensor with the elements of ``value`` and the dtype, place and autograd history of ``tensor``.

        In backward ``see`` is given the gradient that arrives, and may return another to be passed on. ``tracked``
        asks for a tensor that takes a gradient even where ``tensor`` takes none.
        """
        ...

    leaves_gradients: bool
    """Whether backward never writes into a gradient that a hook was given and somebody still holds. An adapter may
    leave it out where it does."""

    def gradient_stays(self, parameter: Any) -> bool:
        """Whether a parameter's gradient is left alone by who holds it still, once it was taken off or another was put
        in its place. An adapter may leave it out where it is not."""
        ...

    def copy_of(self, tensor: Any, see: See | None = None, *, tracked: bool = False) -> Any:
        """A substitute with the elements that ``tensor`` has. An adapter may leave it out."""
        ...

    def write(self, target: Any, source: Any) -> None:
        """Write a tensor into another as the model's own code would, autograd following."""
        ...

    def swap_elements(self, tensor: Any, other: Any) -> Any:
        """Let ``tensor`` hold the memory of ``other``, unseen by autograd; returns a tensor with what it held."""
        ...

    def no_grad(self) -> AbstractContextManager[Any]: ...

    def grad_enabled(self) -> bool: ...

    def product_dtype(self, model: Any) -> str | None:
        """The narrower format in which products of a model's numbers may be made where it lies: ``tf32``. An adapter
        may leave it out."""
        ...

    def autocast_dtype(self) -> str | None:
        """The dtype in which ops are computed here and now although their tensors have a wider one; None where they
        are not. An adapter of a framework that has no such thing may leave it out."""
        ...

    def transforming(self) -> object:
        """Something true where tensors are stand-ins here and now, of a function that is being transformed (``vmap``):
        nothing can be read of them. An adapter of a framework that has no such thing may leave it out."""
        ...

    def requires_grad(self, tensor: Any) -> bool: ...

    def mean_loss(self, outputs: Sequence[Any]) -> Any:
        """The mean over all elements of all given tensors."""
        ...

    def backward(self, loss: Any) -> None: ...

    def may_pause(self, model: Any) -> bool:
        """Whether backward of the model may run in a thread of its own, and be held up there in the middle while
        another backward runs: no device does the work, and nothing is set that holds for the caller's thread only."""
        ...

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

    def ranks(self) -> tuple[int, int] | None:
        """Which of how many processes this is, where they run together; an adapter may leave this out."""
        ...

    # --- leaving things as they were

    def random_state(self) -> Any: ...

    def restore_random_state(self, state: Any) -> None: ...

    def random_key(self, state: Any) -> Any:
        """Something that is equal for equal states; may be left out, and nobody is told then that a model drew."""
        ...

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
