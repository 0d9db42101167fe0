"""Pairs of layers that must agree once the weights of one fill the other: the tables of frameworks/, as examples.

Sizes differ wherever they can, so that a missing transpose fails loudly; the ``square`` cases are those in which
only the values would tell. Every tensor is random, running statistics and affine scales too, and differs between
the two sides until it is copied.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import paddle
import torch
from paddle import nn as pnn
from torch import nn as tnn
from torch.nn.utils import parametrizations

Arrays = tuple[npt.NDArray[Any], ...]


def flat(outputs: Any) -> list[Any]:
    """The tensors of nested tuples and lists, in order."""
    if isinstance(outputs, (tuple, list)):
        return [tensor for part in outputs for tensor in flat(part)]
    return [outputs]


def call(module: Any, *tensors: Any) -> list[Any]:
    """Call the module with the tensors as they are."""
    return flat(module(*tensors))


def call_attention(module: Any, *tensors: Any) -> list[Any]:
    """Call torch's attention, which also returns the attention weights, like paddle's, which does not."""
    return [module(*tensors)[0]]


def call_time_first(module: Any, *tensors: Any) -> list[Any]:
    """Call a torch recurrent layer made with batch_first=False on inputs with the batch first."""
    output, state = module(*(tensor.transpose(0, 1) for tensor in tensors))
    return flat((output.transpose(0, 1), state))


def call_projected(module: Any, *tensors: Any) -> list[Any]:
    """Call a torch LSTM with projections, without its warning that oneDNN has no such kernel."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LSTM with projections", UserWarning)
        return call(module, *tensors)


def call_torch_cell(module: Any, inputs: Any, *states: Any) -> list[Any]:
    """Call a torch cell: it takes the states of an LSTM as one tuple, and returns only the new states."""
    return flat(module(inputs, states if len(states) > 1 else states[0]))


def call_paddle_cell(module: Any, inputs: Any, *states: Any) -> list[Any]:
    """Call a paddle cell: it returns its output before the new states."""
    return flat(module(inputs, states if len(states) > 1 else states[0])[1])


@dataclass(frozen=True)
class LayerCase:
    """A torch and a paddle layer that compute the same, and inputs for both."""

    id: str
    torch: Callable[..., Any]
    """Builds the torch module, in eval mode; ``draw`` numbers the values it is filled with."""
    paddle: Callable[..., Any]
    """Builds the paddle layer, in eval mode; ``draw`` numbers the values it is filled with."""
    inputs: Callable[[], Arrays]
    """Positional inputs; the same at every call."""
    call_torch: Callable[..., list[Any]] = call
    """Module and tensors to a flat list of outputs."""
    call_paddle: Callable[..., list[Any]] = call


def _drawn(rng: np.random.Generator, name: str, shape: Iterable[int]) -> npt.NDArray[np.float32]:
    """Values for the tensor of that name: variances must be positive."""
    size = tuple(shape)
    values = rng.uniform(0.5, 1.5, size) if name.endswith(("running_var", "_variance")) else rng.normal(0, 0.5, size)
    return np.asarray(values, np.float32)


def _kept(name: str) -> bool:
    """Whether the tensor keeps the value it was made with: singular vectors belong to their weight."""
    return name.endswith(("_u", "_v", "_orig", "original", "num_batches_tracked", "_dropout_state"))


def _random_torch(id: str, build: Callable[[], Any]) -> Callable[..., Any]:
    def built(draw: int = 1) -> Any:
        rng = np.random.default_rng([zlib.crc32(id.encode()), draw])
        module = build().eval()
        with torch.no_grad():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if not _kept(name):
                    tensor.copy_(torch.from_numpy(_drawn(rng, name, tensor.shape)))
        return module

    return built


def _random_paddle(id: str, build: Callable[[], Any]) -> Callable[..., Any]:
    def built(draw: int = 2) -> Any:
        rng = np.random.default_rng([zlib.crc32(id.encode()), draw])
        layer = build()
        layer.eval()
        for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if not _kept(name):
                tensor.set_value(_drawn(rng, name, tensor.shape))
        return layer

    return built


def _case(
    id: str,
    torch_layer: Callable[[], Any],
    paddle_layer: Callable[[], Any],
    *inputs: tuple[int, ...] | npt.NDArray[Any],
    call_torch: Callable[..., list[Any]] = call,
    call_paddle: Callable[..., list[Any]] = call,
) -> LayerCase:
    """A case with random tensors; ``inputs`` are shapes of random inputs, or the inputs themselves."""

    def arrays() -> Arrays:
        rng = np.random.default_rng([zlib.crc32(id.encode()), 99])
        return tuple(
            given if isinstance(given, np.ndarray) else rng.normal(size=given).astype(np.float32) for given in inputs
        )

    return LayerCase(
        id, _random_torch(id, torch_layer), _random_paddle(id, paddle_layer), arrays, call_torch, call_paddle
    )


def _old_weight_norm(layer: Any) -> Any:
    """torch's weight_norm from before parametrizations, without its deprecation warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return tnn.utils.weight_norm(layer)


def _spectral_norm(layer: Any, *shape: int) -> Any:
    """paddle's spectral_norm with the iterations that torch does on the spot; before, it may divide by almost zero."""
    layer = pnn.utils.spectral_norm(layer, n_power_iterations=9)
    layer.train()
    layer(paddle.zeros(shape))
    return layer


class CellLoop(tnn.Module):
    """paddle.nn.RNN in torch: a cell called on one step after the other, batch first."""

    def __init__(self, cell: tnn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, inputs: torch.Tensor) -> Any:
        state, outputs = None, []
        for step in inputs.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1), state


class TorchOwn(tnn.Module):
    """A user's layer with parameters of its own, in a list and a dict too."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = tnn.Parameter(torch.zeros(4))
        self.scale = tnn.Parameter(torch.zeros(3, 4))
        self.gains = tnn.ParameterList([tnn.Parameter(torch.zeros(4)) for _ in range(2)])
        self.more = tnn.ParameterDict({name: tnn.Parameter(torch.zeros(4)) for name in ("left", "right")})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scaled = inputs * self.scale * self.gains[0] + self.shift * self.gains[1]
        return scaled * self.more["left"] + self.more["right"]


class PaddleOwn(pnn.Layer):
    """The same layer in paddle."""

    def __init__(self) -> None:
        super().__init__()
        self.more = pnn.ParameterDict({name: self.create_parameter([4]) for name in ("right", "left")})
        self.gains = pnn.ParameterList([self.create_parameter([4]) for _ in range(2)])
        self.scale = self.create_parameter([3, 4])
        self.shift = self.create_parameter([4])

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        scaled = inputs * self.scale * self.gains[0] + self.shift * self.gains[1]
        return scaled * self.more["left"] + self.more["right"]


class PaddleRMSNorm(pnn.Layer):
    """torch.nn.RMSNorm, which paddle 3.3 has as a function only, the way its users write it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([size])

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        mean = inputs.square().mean(-1, keepdim=True)
        return inputs * (mean + np.finfo(np.float32).eps).rsqrt() * self.weight


SENTENCES = np.array([[0, 3, 8], [5, 1, 2]], np.int64)

DENSE = [
    _case("linear", lambda: tnn.Linear(3, 5), lambda: pnn.Linear(3, 5), (2, 3)),
    _case("linear_no_bias", lambda: tnn.Linear(3, 5, bias=False), lambda: pnn.Linear(3, 5, bias_attr=False), (2, 3)),
    _case("linear_square", lambda: tnn.Linear(4, 4), lambda: pnn.Linear(4, 4), (2, 4)),
    _case("linear_compat", lambda: tnn.Linear(3, 5), lambda: paddle.compat.nn.Linear(3, 5), (2, 3)),
    _case("bilinear", lambda: tnn.Bilinear(3, 4, 5), lambda: pnn.Bilinear(3, 4, 5), (2, 3), (2, 4)),
    _case("bilinear_square", lambda: tnn.Bilinear(4, 4, 4), lambda: pnn.Bilinear(4, 4, 4), (2, 4), (2, 4)),
    _case("embedding", lambda: tnn.Embedding(9, 4), lambda: pnn.Embedding(9, 4), SENTENCES),
    _case("own_parameters", TorchOwn, PaddleOwn, (2, 3, 4)),
    _case("prelu", lambda: tnn.PReLU(), lambda: pnn.PReLU(), (2, 3, 4)),
    _case("prelu_channels", lambda: tnn.PReLU(3), lambda: pnn.PReLU(3), (2, 3, 4, 5)),
]

CONVOLUTIONS = [
    _case("conv1d", lambda: tnn.Conv1d(3, 5, 4), lambda: pnn.Conv1D(3, 5, 4), (2, 3, 7)),
    _case("conv2d", lambda: tnn.Conv2d(2, 5, (3, 4)), lambda: pnn.Conv2D(2, 5, (3, 4)), (1, 2, 7, 8)),
    _case(
        "conv2d_groups",
        lambda: tnn.Conv2d(10, 6, (3, 4), groups=2, bias=False),
        lambda: pnn.Conv2D(10, 6, (3, 4), groups=2, bias_attr=False),
        (2, 10, 7, 8),
    ),
    _case("conv2d_square", lambda: tnn.Conv2d(3, 3, 3), lambda: pnn.Conv2D(3, 3, 3), (1, 3, 5, 5)),
    _case("conv3d", lambda: tnn.Conv3d(2, 5, (1, 3, 4)), lambda: pnn.Conv3D(2, 5, (1, 3, 4)), (1, 2, 3, 6, 7)),
    _case("conv_transpose1d", lambda: tnn.ConvTranspose1d(3, 5, 4), lambda: pnn.Conv1DTranspose(3, 5, 4), (2, 3, 7)),
    _case(
        "conv_transpose2d",
        lambda: tnn.ConvTranspose2d(2, 5, (3, 4), stride=2),
        lambda: pnn.Conv2DTranspose(2, 5, (3, 4), stride=2),
        (1, 2, 6, 7),
    ),
    _case(
        "conv_transpose2d_groups",
        lambda: tnn.ConvTranspose2d(6, 10, (3, 4), groups=2),
        lambda: pnn.Conv2DTranspose(6, 10, (3, 4), groups=2),
        (1, 6, 7, 8),
    ),
    _case(
        "conv_transpose2d_square",
        lambda: tnn.ConvTranspose2d(3, 3, 3),
        lambda: pnn.Conv2DTranspose(3, 3, 3),
        (1, 3, 5, 5),
    ),
    _case(
        "conv_transpose3d",
        lambda: tnn.ConvTranspose3d(2, 5, (1, 3, 4)),
        lambda: pnn.Conv3DTranspose(2, 5, (1, 3, 4)),
        (1, 2, 3, 6, 7),
    ),
]

NORMS = [
    _case("batch_norm1d", lambda: tnn.BatchNorm1d(3), lambda: pnn.BatchNorm1D(3), (2, 3, 4)),
    _case("batch_norm2d", lambda: tnn.BatchNorm2d(3), lambda: pnn.BatchNorm2D(3), (2, 3, 4, 5)),
    _case(
        "batch_norm2d_not_affine",
        lambda: tnn.BatchNorm2d(3, affine=False),
        lambda: pnn.BatchNorm2D(3, weight_attr=False, bias_attr=False),
        (2, 3, 4, 5),
    ),
    _case("batch_norm3d", lambda: tnn.BatchNorm3d(3), lambda: pnn.BatchNorm3D(3), (1, 3, 4, 5, 6)),
    _case("batch_norm_old", lambda: tnn.BatchNorm2d(3), lambda: pnn.BatchNorm(3), (2, 3, 4, 5)),
    # paddle 3.3 has no kernel of SyncBatchNorm for the CPU, so torch's stands against the plain one.
    _case("batch_norm_sync", lambda: tnn.SyncBatchNorm(3), lambda: pnn.BatchNorm2D(3), (2, 3, 4, 5)),
    _case("layer_norm", lambda: tnn.LayerNorm(4), lambda: pnn.LayerNorm(4), (2, 3, 4)),
    _case("layer_norm_two_axes", lambda: tnn.LayerNorm([3, 4]), lambda: pnn.LayerNorm([3, 4]), (2, 3, 4)),
    _case("rms_norm", lambda: tnn.RMSNorm(4), lambda: PaddleRMSNorm(4), (2, 3, 4)),
    _case("group_norm", lambda: tnn.GroupNorm(2, 6), lambda: pnn.GroupNorm(2, 6), (3, 6, 4, 5)),
    _case("instance_norm1d", lambda: tnn.InstanceNorm1d(3, affine=True), lambda: pnn.InstanceNorm1D(3), (2, 3, 4)),
    _case("instance_norm2d", lambda: tnn.InstanceNorm2d(3, affine=True), lambda: pnn.InstanceNorm2D(3), (2, 3, 4, 5)),
    _case(
        "instance_norm3d", lambda: tnn.InstanceNorm3d(3, affine=True), lambda: pnn.InstanceNorm3D(3), (1, 3, 4, 5, 6)
    ),
]

NORMALISED = [
    _case(
        "weight_norm_conv2d",
        lambda: parametrizations.weight_norm(tnn.Conv2d(2, 5, (3, 4))),
        lambda: pnn.utils.weight_norm(pnn.Conv2D(2, 5, (3, 4))),
        (1, 2, 7, 8),
    ),
    _case(
        "weight_norm_conv_transpose2d",
        lambda: parametrizations.weight_norm(tnn.ConvTranspose2d(2, 5, (3, 4))),
        lambda: pnn.utils.weight_norm(pnn.Conv2DTranspose(2, 5, (3, 4))),
        (1, 2, 7, 8),
    ),
    _case(
        "weight_norm_conv2d_old",
        lambda: _old_weight_norm(tnn.Conv2d(2, 5, (3, 4))),
        lambda: pnn.utils.weight_norm(pnn.Conv2D(2, 5, (3, 4))),
        (1, 2, 7, 8),
    ),
    _case(
        "weight_norm_linear",
        lambda: parametrizations.weight_norm(tnn.Linear(3, 5)),
        lambda: pnn.utils.weight_norm(pnn.Linear(3, 5), dim=1),
        (2, 3),
    ),
    _case(
        "weight_norm_linear_square",
        lambda: parametrizations.weight_norm(tnn.Linear(4, 4)),
        lambda: pnn.utils.weight_norm(pnn.Linear(4, 4), dim=1),
        (2, 4),
    ),
    _case(
        "spectral_norm_linear",
        lambda: parametrizations.spectral_norm(tnn.Linear(3, 5)),
        lambda: _spectral_norm(pnn.Linear(3, 5), 2, 3),
        (2, 3),
    ),
    _case(
        "spectral_norm_linear_old",
        lambda: tnn.utils.spectral_norm(tnn.Linear(3, 5)),
        lambda: _spectral_norm(pnn.Linear(3, 5), 2, 3),
        (2, 3),
    ),
    _case(
        "spectral_norm_conv_transpose2d",
        lambda: parametrizations.spectral_norm(tnn.ConvTranspose2d(2, 5, (3, 4))),
        lambda: _spectral_norm(pnn.Conv2DTranspose(2, 5, (3, 4)), 1, 2, 7, 8),
        (1, 2, 7, 8),
    ),
]

# paddle 3.3.1 has no recurrent layer without biases to compare with: it fails with IndexError or a segmentation fault.
RECURRENT = [
    _case("lstm", lambda: tnn.LSTM(3, 5, batch_first=True), lambda: pnn.LSTM(3, 5), (2, 4, 3)),
    _case("lstm_time_first", lambda: tnn.LSTM(3, 5), lambda: pnn.LSTM(3, 5), (2, 4, 3), call_torch=call_time_first),
    _case(
        "lstm_deep_both_ways",
        lambda: tnn.LSTM(3, 5, 2, batch_first=True, bidirectional=True),
        lambda: pnn.LSTM(3, 5, 2, direction="bidirect"),
        (2, 4, 3),
    ),
    _case(
        "lstm_square",
        lambda: tnn.LSTM(4, 4, 2, batch_first=True, bidirectional=True),
        lambda: pnn.LSTM(4, 4, 2, direction="bidirect"),
        (4, 4, 4),
    ),
    _case(
        "lstm_projection",
        lambda: tnn.LSTM(3, 5, 2, batch_first=True, bidirectional=True, proj_size=2),
        lambda: pnn.LSTM(3, 5, 2, direction="bidirect", proj_size=2),
        (2, 4, 3),
        call_torch=call_projected,
    ),
    _case("gru", lambda: tnn.GRU(3, 5, batch_first=True), lambda: pnn.GRU(3, 5), (2, 4, 3)),
    _case(
        "gru_deep_both_ways",
        lambda: tnn.GRU(3, 5, 2, batch_first=True, bidirectional=True),
        lambda: pnn.GRU(3, 5, 2, direction="bidirect"),
        (2, 4, 3),
    ),
    _case("rnn", lambda: tnn.RNN(3, 5, batch_first=True), lambda: pnn.SimpleRNN(3, 5), (2, 4, 3)),
    _case(
        "rnn_relu_deep_both_ways",
        lambda: tnn.RNN(3, 5, 2, nonlinearity="relu", batch_first=True, bidirectional=True),
        lambda: pnn.SimpleRNN(3, 5, 2, direction="bidirect", activation="relu"),
        (2, 4, 3),
    ),
    _case(
        "lstm_cell",
        lambda: tnn.LSTMCell(3, 5),
        lambda: pnn.LSTMCell(3, 5),
        (2, 3),
        (2, 5),
        (2, 5),
        call_torch=call_torch_cell,
        call_paddle=call_paddle_cell,
    ),
    _case(
        "gru_cell",
        lambda: tnn.GRUCell(3, 5),
        lambda: pnn.GRUCell(3, 5),
        (2, 3),
        (2, 5),
        call_torch=call_torch_cell,
        call_paddle=call_paddle_cell,
    ),
    _case(
        "rnn_cell",
        lambda: tnn.RNNCell(3, 5),
        lambda: pnn.SimpleRNNCell(3, 5),
        (2, 3),
        (2, 5),
        call_torch=call_torch_cell,
        call_paddle=call_paddle_cell,
    ),
    _case("lstm_cell_loop", lambda: CellLoop(tnn.LSTMCell(3, 5)), lambda: pnn.RNN(pnn.LSTMCell(3, 5)), (2, 4, 3)),
    _case("gru_cell_loop", lambda: CellLoop(tnn.GRUCell(3, 5)), lambda: pnn.RNN(pnn.GRUCell(3, 5)), (2, 4, 3)),
]

ATTENTION = [
    _case(
        "attention",
        lambda: tnn.MultiheadAttention(6, 2, batch_first=True),
        lambda: pnn.MultiHeadAttention(6, 2),
        (2, 3, 6),
        (2, 4, 6),
        (2, 4, 6),
        call_torch=call_attention,
    ),
    _case(
        "attention_no_bias",
        lambda: tnn.MultiheadAttention(6, 2, bias=False, batch_first=True),
        lambda: pnn.MultiHeadAttention(6, 2, bias_attr=False),
        (2, 3, 6),
        (2, 4, 6),
        (2, 4, 6),
        call_torch=call_attention,
    ),
    _case(
        "attention_sizes",
        lambda: tnn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True),
        lambda: pnn.MultiHeadAttention(6, 3, kdim=4, vdim=5),
        (2, 7, 6),
        (2, 8, 4),
        (2, 8, 5),
        call_torch=call_attention,
    ),
    _case(
        "attention_square",
        lambda: tnn.MultiheadAttention(4, 4, batch_first=True),
        lambda: pnn.MultiHeadAttention(4, 4),
        (4, 4, 4),
        (4, 4, 4),
        (4, 4, 4),
        call_torch=call_attention,
    ),
    _case(
        "attention_compat",
        lambda: tnn.MultiheadAttention(6, 2, batch_first=True),
        lambda: paddle.compat.nn.MultiheadAttention(6, 2, batch_first=True),
        (2, 3, 6),
        (2, 4, 6),
        (2, 4, 6),
        call_torch=call_attention,
        call_paddle=call_attention,
    ),
    _case(
        "attention_compat_sizes",
        lambda: tnn.MultiheadAttention(6, 3, kdim=4, vdim=5, add_bias_kv=True, batch_first=True),
        lambda: paddle.compat.nn.MultiheadAttention(6, 3, kdim=4, vdim=5, add_bias_kv=True, batch_first=True),
        (2, 7, 6),
        (2, 8, 4),
        (2, 8, 5),
        call_torch=call_attention,
        call_paddle=call_attention,
    ),
]


def _torch_encoder(before: bool) -> tnn.TransformerEncoder:
    layer = tnn.TransformerEncoderLayer(6, 2, 10, batch_first=True, norm_first=before)
    return tnn.TransformerEncoder(layer, 2, tnn.LayerNorm(6), enable_nested_tensor=False)


def _torch_decoder(before: bool) -> tnn.TransformerDecoder:
    layer = tnn.TransformerDecoderLayer(6, 2, 10, batch_first=True, norm_first=before)
    return tnn.TransformerDecoder(layer, 2, tnn.LayerNorm(6))


def _torch_transformer(before: bool) -> tnn.Transformer:
    return tnn.Transformer(
        6, 2, custom_encoder=_torch_encoder(before), custom_decoder=_torch_decoder(before), batch_first=True
    )


def _paddle_encoder(before: bool) -> pnn.TransformerEncoder:
    layer = pnn.TransformerEncoderLayer(6, 2, 10, normalize_before=before)
    return pnn.TransformerEncoder(layer, 2, pnn.LayerNorm(6))


def _paddle_decoder(before: bool) -> pnn.TransformerDecoder:
    layer = pnn.TransformerDecoderLayer(6, 2, 10, normalize_before=before)
    return pnn.TransformerDecoder(layer, 2, pnn.LayerNorm(6))


def _paddle_transformer(before: bool) -> pnn.Transformer:
    return pnn.Transformer(6, 2, 2, 2, 10, normalize_before=before)


TRANSFORMERS = [
    _case(
        "transformer_encoder_layer",
        lambda: tnn.TransformerEncoderLayer(6, 2, 10, batch_first=True),
        lambda: pnn.TransformerEncoderLayer(6, 2, 10),
        (2, 3, 6),
    ),
    _case(
        "transformer_encoder_layer_square",
        lambda: tnn.TransformerEncoderLayer(6, 2, 6, batch_first=True, activation="gelu"),
        lambda: pnn.TransformerEncoderLayer(6, 2, 6, activation="gelu"),
        (2, 3, 6),
    ),
    _case(
        "transformer_decoder_layer",
        lambda: tnn.TransformerDecoderLayer(6, 2, 10, batch_first=True),
        lambda: pnn.TransformerDecoderLayer(6, 2, 10),
        (2, 3, 6),
        (2, 4, 6),
    ),
    _case("transformer_encoder_post", lambda: _torch_encoder(False), lambda: _paddle_encoder(False), (2, 3, 6)),
    _case("transformer_encoder_pre", lambda: _torch_encoder(True), lambda: _paddle_encoder(True), (2, 3, 6)),
    _case(
        "transformer_decoder_post", lambda: _torch_decoder(False), lambda: _paddle_decoder(False), (2, 3, 6), (2, 4, 6)
    ),
    _case("transformer_decoder_pre", lambda: _torch_decoder(True), lambda: _paddle_decoder(True), (2, 3, 6), (2, 4, 6)),
    _case(
        "transformer_post", lambda: _torch_transformer(False), lambda: _paddle_transformer(False), (2, 3, 6), (2, 4, 6)
    ),
    _case("transformer_pre", lambda: _torch_transformer(True), lambda: _paddle_transformer(True), (2, 3, 6), (2, 4, 6)),
]

LABELS = np.array([0, 2, 1, 2], np.int64)
MARKS = np.array([[0, 1, 1], [1, 0, 0]], np.float32)
CHANCES = np.array([[0.1, 0.7, 0.4], [0.3, 0.2, 0.9]], np.float32)


def _loss(id: str, name: str, *inputs: tuple[int, ...] | npt.NDArray[Any], **tensors: int) -> LayerCase:
    """A loss of the same name in both, with weights of these lengths."""
    return _case(
        id,
        lambda: getattr(tnn, name)(reduction="sum", **{key: torch.ones(size) for key, size in tensors.items()}),
        lambda: getattr(pnn, name)(reduction="sum", **{key: paddle.ones([size]) for key, size in tensors.items()}),
        *inputs,
    )


LOSSES = [
    _loss("cross_entropy_loss", "CrossEntropyLoss", (4, 3), LABELS, weight=3),
    _loss("nll_loss", "NLLLoss", (4, 3), LABELS, weight=3),
    _loss("bce_loss", "BCELoss", CHANCES, MARKS, weight=3),
    _loss("bce_with_logits_loss", "BCEWithLogitsLoss", (2, 3), MARKS, weight=3, pos_weight=3),
    _loss("multi_label_soft_margin_loss", "MultiLabelSoftMarginLoss", (2, 3), MARKS, weight=3),
    _loss("multi_margin_loss", "MultiMarginLoss", (4, 3), LABELS, weight=3),
]

CASES: list[LayerCase] = [
    *DENSE,
    *CONVOLUTIONS,
    *NORMS,
    *NORMALISED,
    *RECURRENT,
    *ATTENTION,
    *TRANSFORMERS,
    *LOSSES,
]
