"""How paddle's layers store their tensors. Axes: o output, i input, d h w space; n of an embedding counts its rows."""

from __future__ import annotations

from padiff.frameworks.layers import LayerSpec, Stored, same


def _normalised(axes: str, kept: str) -> dict[str, Stored]:
    """The tensors that stand in for ``weight`` under weight_norm or spectral_norm; ``kept`` is the axis a norm keeps.

    Both call one of theirs ``weight_v``: the direction (laid out like the weight) or a singular vector (one axis,
    in the same order everywhere). So these axes hold for a tensor of that rank; one of another rank is taken as it
    stands. The same goes for the single norm of ``dim=None``.
    """
    return {
        "weight_g": Stored(("weight_g",), kept),
        "weight_v": Stored(("weight_v",), axes),
        "weight_orig": Stored(("weight_orig",), axes),
        "weight_u": Stored(("weight_u",), role="buffer"),
    }


def _weighted(layer: str, axes: str, kept: str = "o") -> LayerSpec:
    """A layer that multiplies by ``weight`` and adds ``bias``."""
    own = {"weight": Stored(("weight",), axes), "bias": Stored(("bias",), "o")}
    return LayerSpec(layer, own | _normalised(axes, kept))


# Running statistics are parameters to paddle, but are never trained. Measured on the CPU with 3.3.1: the running
# variance takes in the variance of a batch divided by n, where torch divides by n - 1.
_STATISTICS = {
    "_mean": Stored(("running_mean",), role="buffer"),
    "_variance": Stored(("running_var",), role="buffer", convention="biased"),
}
_AFFINE = same("weight", "bias")
_SCALE = {"scale": Stored(("weight",)), "bias": Stored(("bias",))}
# A LayerNorm over several axes keeps its elements in one.
_FLAT = {name: Stored((name,), convention="flat") for name in ("weight", "bias")}
_CELL = {
    "weight_ih": Stored(("weight_ih",), "oi"),
    "weight_hh": Stored(("weight_hh",), "oi"),
    "weight_ho": Stored(("weight_hr",), "io"),
    "bias_ih": Stored(("bias_ih",), "o"),
    "bias_hh": Stored(("bias_hh",), "o"),
}


def _recurrent(layer: str) -> LayerSpec:
    """An LSTM, GRU or SimpleRNN, by the tensors of its cells.

    The layer registers the same tensors again as ``weight_ih_l0`` and so on, but with ``proj_size`` under shifted
    names (3.3.1: ``weight_ih_l0_reverse`` is the projection of the first cell), so only the cells' names are right.
    """
    stored = {"_dropout_state": Stored((), role="buffer", optional=True)}  # scratch memory: nothing of the model
    for cell, direction in (("cell", ""), ("cell_fw", ""), ("cell_bw", "_reverse")):
        for name, kept in _CELL.items():
            stored[f"*.{cell}.{name}"] = Stored((f"{kept.parts[0]}_l*{direction}",), kept.axes)
    return LayerSpec(layer, stored, atomic=True)


def _attention() -> LayerSpec:
    stored = {}
    for part in ("q", "k", "v", "out"):
        stored[f"{part}_proj.weight"] = Stored((f"{part}.weight",), "io")
        stored[f"{part}_proj.bias"] = Stored((f"{part}.bias",), "o")
    return LayerSpec("attention", stored, atomic=True)


# paddle.compat.nn repeats torch's layers, layouts included; the biases of separate projections stay separate.
_COMPAT_ATTENTION = {
    "in_proj_weight": Stored(("q.weight", "k.weight", "v.weight"), "oi", along=0),
    "q_proj_weight": Stored(("q.weight",), "oi"),
    "k_proj_weight": Stored(("k.weight",), "oi"),
    "v_proj_weight": Stored(("v.weight",), "oi"),
    "in_proj_bias": Stored(("q.bias", "k.bias", "v.bias"), "o", along=0),
    "q_proj_bias": Stored(("q.bias",), "o"),
    "k_proj_bias": Stored(("k.bias",), "o"),
    "v_proj_bias": Stored(("v.bias",), "o"),
    "out_proj.weight": Stored(("out.weight",), "oi"),
    "out_proj.bias": Stored(("out.bias",), "o"),
    "bias_k": Stored(("bias_k",), "11o"),
    "bias_v": Stored(("bias_v",), "11o"),
}
_CLASS_WEIGHT = {"weight": Stored(("weight",), role="buffer")}

_WITH_TENSORS = {
    # weight_norm has to be told dim=1 to keep the output, as torch does by default.
    "common.Linear": _weighted("linear", "io"),
    "common.Bilinear": LayerSpec("bilinear", {"weight": Stored(("weight",)), "bias": Stored(("bias",), "1o")}),
    "conv.Conv1D": _weighted("conv1d", "oiw"),
    "conv.Conv2D": _weighted("conv2d", "oihw"),
    "conv.Conv3D": _weighted("conv3d", "oidhw"),
    # weight_norm keeps axis 0 by default, which is the input here.
    "conv.Conv1DTranspose": _weighted("conv_transpose1d", "iow", kept="i"),
    "conv.Conv2DTranspose": _weighted("conv_transpose2d", "iohw", kept="i"),
    "conv.Conv3DTranspose": _weighted("conv_transpose3d", "iodhw", kept="i"),
    "common.Embedding": LayerSpec("embedding", {"weight": Stored(("weight",), "no")}),
    "norm.BatchNorm": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "norm.BatchNorm1D": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "norm.BatchNorm2D": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "norm.BatchNorm3D": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "norm.SyncBatchNorm": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "norm.InstanceNorm1D": LayerSpec("instance_norm", _SCALE),
    "norm.InstanceNorm2D": LayerSpec("instance_norm", _SCALE),
    "norm.InstanceNorm3D": LayerSpec("instance_norm", _SCALE),
    "norm.LayerNorm": LayerSpec("layer_norm", _FLAT),
    "norm.GroupNorm": LayerSpec("group_norm", _AFFINE),
    # Given a weight, returns it normalised; torch attaches the same to a layer instead.
    "norm.SpectralNorm": LayerSpec(
        "spectral_norm", {name: Stored((name,), role="buffer") for name in ("weight_u", "weight_v")}
    ),
    "activation.PReLU": LayerSpec("prelu", {"_weight": Stored(("weight",))}),
    "rnn.LSTM": _recurrent("lstm"),
    "rnn.GRU": _recurrent("gru"),
    "rnn.SimpleRNN": _recurrent("rnn"),
    "rnn.LSTMCell": LayerSpec("lstm_cell", _CELL),
    "rnn.GRUCell": LayerSpec("gru_cell", _CELL),
    "rnn.SimpleRNNCell": LayerSpec("rnn_cell", _CELL),
    "transformer.MultiHeadAttention": _attention(),
    "container.ParameterList": LayerSpec("parameter_list", same("*")),
    "container.ParameterDict": LayerSpec("parameter_dict", same("*")),
    # 3.3.1 keeps the tails in a plain list, out of reach of parameters() and state_dict().
    "loss.AdaptiveLogSoftmaxWithLoss": LayerSpec(
        "adaptive_log_softmax_with_loss",
        {"head_weight": Stored(("head.weight",), "io"), "head_bias": Stored(("head.bias",), "o")},
        atomic=True,
    ),
    "loss.HSigmoidLoss": LayerSpec("hsigmoid_loss", same("weight", "bias")),
    "loss.CrossEntropyLoss": LayerSpec("cross_entropy_loss", _CLASS_WEIGHT),
    "loss.NLLLoss": LayerSpec("nll_loss", {"_weight": Stored(("weight",), role="buffer")}),
    "loss.BCELoss": LayerSpec("bce_loss", _CLASS_WEIGHT),
    "loss.BCEWithLogitsLoss": LayerSpec(
        "bce_with_logits_loss", _CLASS_WEIGHT | {"pos_weight": Stored(("pos_weight",), role="buffer")}
    ),
    "loss.MultiLabelSoftMarginLoss": LayerSpec("multi_label_soft_margin_loss", _CLASS_WEIGHT),
    "loss.MultiMarginLoss": LayerSpec("multi_margin_loss", _CLASS_WEIGHT),
}

# One neutral name for layers whose difference is an argument elsewhere (the mode of a padding, of an upsampling).
_WITHOUT_TENSORS = {
    "transformer": "transformer.Transformer",
    "transformer_encoder": "transformer.TransformerEncoder",
    "transformer_encoder_layer": "transformer.TransformerEncoderLayer",
    "transformer_decoder": "transformer.TransformerDecoder",
    "transformer_decoder_layer": "transformer.TransformerDecoderLayer",
    "cell_loop": "rnn.RNN",
    "bidirectional_cell_loop": "rnn.BiRNN",
    "sequential": "container.Sequential",
    "module_list": "container.LayerList",
    "module_dict": "container.LayerDict",
    "celu": "activation.CELU",
    "elu": "activation.ELU",
    "gelu": "activation.GELU",
    "glu": "activation.GLU",
    "hardshrink": "activation.Hardshrink",
    "hardsigmoid": "activation.Hardsigmoid",
    "hardswish": "activation.Hardswish",
    "hardtanh": "activation.Hardtanh",
    "leaky_relu": "activation.LeakyReLU",
    "log_sigmoid": "activation.LogSigmoid",
    "log_softmax": "activation.LogSoftmax",
    "maxout": "activation.Maxout",
    "mish": "activation.Mish",
    "relu": "activation.ReLU",
    "relu6": "activation.ReLU6",
    "rrelu": "activation.RReLU",
    "selu": "activation.SELU",
    "sigmoid": "activation.Sigmoid",
    "silu": "activation.Silu activation.Swish",
    "softmax": "activation.Softmax",
    "softmax2d": "activation.Softmax2D",
    "softplus": "activation.Softplus",
    "softshrink": "activation.Softshrink",
    "softsign": "activation.Softsign",
    "tanh": "activation.Tanh",
    "tanhshrink": "activation.Tanhshrink",
    "threshold": "activation.ThresholdedReLU",
    "max_pool1d": "pooling.MaxPool1D",
    "max_pool2d": "pooling.MaxPool2D",
    "max_pool3d": "pooling.MaxPool3D",
    "avg_pool1d": "pooling.AvgPool1D",
    "avg_pool2d": "pooling.AvgPool2D",
    "avg_pool3d": "pooling.AvgPool3D",
    "adaptive_max_pool1d": "pooling.AdaptiveMaxPool1D",
    "adaptive_max_pool2d": "pooling.AdaptiveMaxPool2D",
    "adaptive_max_pool3d": "pooling.AdaptiveMaxPool3D",
    "adaptive_avg_pool1d": "pooling.AdaptiveAvgPool1D",
    "adaptive_avg_pool2d": "pooling.AdaptiveAvgPool2D",
    "adaptive_avg_pool3d": "pooling.AdaptiveAvgPool3D",
    "fractional_max_pool2d": "pooling.FractionalMaxPool2D",
    "fractional_max_pool3d": "pooling.FractionalMaxPool3D",
    "lp_pool1d": "pooling.LPPool1D",
    "lp_pool2d": "pooling.LPPool2D",
    "max_unpool1d": "pooling.MaxUnPool1D",
    "max_unpool2d": "pooling.MaxUnPool2D",
    "max_unpool3d": "pooling.MaxUnPool3D",
    "dropout": "common.Dropout",
    "dropout2d": "common.Dropout2D",
    "dropout3d": "common.Dropout3D",
    "alpha_dropout": "common.AlphaDropout",
    "feature_alpha_dropout": "common.FeatureAlphaDropout",
    "identity": "common.Identity",
    "flatten": "common.Flatten",
    "unflatten": "common.Unflatten",
    "fold": "common.Fold",
    "unfold": "common.Unfold",
    "upsample": "common.Upsample common.UpsamplingBilinear2D common.UpsamplingNearest2D",
    "pixel_shuffle": "vision.PixelShuffle",
    "pixel_unshuffle": "vision.PixelUnshuffle",
    "channel_shuffle": "vision.ChannelShuffle",
    "pad1d": "common.Pad1D",
    "pad2d": "common.Pad2D",
    "pad3d": "common.Pad3D",
    "local_response_norm": "norm.LocalResponseNorm",
    "cosine_similarity": "common.CosineSimilarity",
    "pairwise_distance": "distance.PairwiseDistance",
    "cosine_embedding_loss": "loss.CosineEmbeddingLoss",
    "ctc_loss": "loss.CTCLoss",
    "gaussian_nll_loss": "loss.GaussianNLLLoss",
    "hinge_embedding_loss": "loss.HingeEmbeddingLoss",
    "kl_div_loss": "loss.KLDivLoss",
    "l1_loss": "loss.L1Loss",
    "margin_ranking_loss": "loss.MarginRankingLoss",
    "mse_loss": "loss.MSELoss",
    "multi_label_margin_loss": "loss.MultiLabelMarginLoss",
    "poisson_nll_loss": "loss.PoissonNLLLoss",
    "rnnt_loss": "loss.RNNTLoss",
    "smooth_l1_loss": "loss.SmoothL1Loss",
    "soft_margin_loss": "loss.SoftMarginLoss",
    "triplet_margin_loss": "loss.TripletMarginLoss",
    "triplet_margin_with_distance_loss": "loss.TripletMarginWithDistanceLoss",
}

_ELSEWHERE = {
    "paddle.compat.nn.Linear": _weighted("linear", "oi"),
    "paddle.compat.nn.Softmax": LayerSpec("softmax"),
    "paddle.compat.nn.AvgPool1D": LayerSpec("avg_pool1d"),
    "paddle.compat.nn.AvgPool2D": LayerSpec("avg_pool2d"),
    "paddle.compat.nn.AvgPool3D": LayerSpec("avg_pool3d"),
    "paddle.compat.nn.transformer.MultiheadAttention": LayerSpec("attention", _COMPAT_ATTENTION, atomic=True),
    # transpose_weight=True stores "oi"; the class alone doesn't say.
    "paddle.incubate.nn.layer.fused_linear.FusedLinear": _weighted("linear", "io"),
    "paddle.distributed.fleet.layers.mpu.mp_layers.ColumnParallelLinear": _weighted("linear", "io"),
    "paddle.distributed.fleet.layers.mpu.mp_layers.RowParallelLinear": _weighted("linear", "io"),
    "paddle.distributed.fleet.layers.mpu.mp_layers.VocabParallelEmbedding": LayerSpec(
        "embedding", {"weight": Stored(("weight",), "no")}
    ),
}

LAYERS: dict[str, LayerSpec] = (
    {f"paddle.nn.layer.{path}": spec for path, spec in _WITH_TENSORS.items()}
    | {f"paddle.nn.layer.{path}": LayerSpec(name) for name, paths in _WITHOUT_TENSORS.items() for path in paths.split()}
    | _ELSEWHERE
)
"""Qualified class name to how the class stores its tensors; what is absent inherits from its bases."""
