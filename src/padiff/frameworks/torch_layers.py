"""How torch's layers store their tensors. Axes: o output, i input, d h w space; n of an embedding counts its rows."""

from __future__ import annotations

from dataclasses import replace

from padiff.frameworks.layers import LayerSpec, Stored, same


def _normalised(axes: str, kept: str) -> dict[str, Stored]:
    """The tensors that stand in for ``weight`` under weight_norm or spectral_norm; ``kept`` is the axis a norm keeps.

    Both call one of theirs ``weight_v``: the direction (laid out like the weight) or a singular vector (one axis,
    in the same order everywhere). So these axes hold for a tensor of that rank; one of another rank is taken as it
    stands. The same goes for the single norm of ``dim=None``.
    """
    norm = Stored(("weight_g",), "".join(axis if axis == kept else "1" for axis in axes))
    whole, direction = Stored(("weight_orig",), axes), Stored(("weight_v",), axes)
    left, right = Stored(("weight_u",), role="buffer"), Stored(("weight_v",), role="buffer")
    return {
        "weight_g": norm,
        "weight_v": direction,
        "weight_orig": whole,
        "weight_u": left,
        "parametrizations.weight.original0": norm,
        "parametrizations.weight.original1": direction,
        "parametrizations.weight.original": whole,
        "parametrizations.weight.0._u": left,
        "parametrizations.weight.0._v": right,
    }


def _weighted(layer: str, axes: str, kept: str = "o") -> LayerSpec:
    """A layer that multiplies by ``weight`` and adds ``bias``."""
    own = {"weight": Stored(("weight",), axes), "bias": Stored(("bias",), "o")}
    return LayerSpec(layer, own | _normalised(axes, kept))


_STATISTICS = {
    "running_mean": Stored(("running_mean",), role="buffer"),
    "running_var": Stored(("running_var",), role="buffer", convention="unbiased"),
    "num_batches_tracked": Stored(("num_batches_tracked",), role="buffer", optional=True),
}
_AFFINE = same("weight", "bias")
_CELL = {
    "weight_ih": Stored(("weight_ih",), "oi"),
    "weight_hh": Stored(("weight_hh",), "oi"),
    "bias_ih": Stored(("bias_ih",), "o"),
    "bias_hh": Stored(("bias_hh",), "o"),
}
# "*" is the number of the layer, followed by "_reverse" for the second direction. The gates of LSTM (i, f, g, o) and
# GRU (r, z, n) lie in the same order in paddle 3.3, both biases included.
_RECURRENT = {
    "weight_ih_l*": Stored(("weight_ih_l*",), "oi"),
    "weight_hh_l*": Stored(("weight_hh_l*",), "oi"),
    "weight_hr_l*": Stored(("weight_hr_l*",), "oi"),
    "bias_ih_l*": Stored(("bias_ih_l*",), "o"),
    "bias_hh_l*": Stored(("bias_hh_l*",), "o"),
}
_ATTENTION = {
    "in_proj_weight": Stored(("q.weight", "k.weight", "v.weight"), "oi", along=0),
    "q_proj_weight": Stored(("q.weight",), "oi"),
    "k_proj_weight": Stored(("k.weight",), "oi"),
    "v_proj_weight": Stored(("v.weight",), "oi"),
    "in_proj_bias": Stored(("q.bias", "k.bias", "v.bias"), "o", along=0),
    "out_proj.weight": Stored(("out.weight",), "oi"),
    "out_proj.bias": Stored(("out.bias",), "o"),
    "bias_k": Stored(("bias_k",), "11o"),
    "bias_v": Stored(("bias_v",), "11o"),
}
_CLASS_WEIGHT = {"weight": Stored(("weight",), role="buffer")}

_WITH_TENSORS = {
    "linear.Linear": _weighted("linear", "oi"),
    "linear.Bilinear": LayerSpec("bilinear", {"weight": Stored(("weight",)), "bias": Stored(("bias",), "o")}),
    "conv.Conv1d": _weighted("conv1d", "oiw"),
    "conv.Conv2d": _weighted("conv2d", "oihw"),
    "conv.Conv3d": _weighted("conv3d", "oidhw"),
    # weight_norm keeps axis 0 by default, which is the input here.
    "conv.ConvTranspose1d": _weighted("conv_transpose1d", "iow", kept="i"),
    "conv.ConvTranspose2d": _weighted("conv_transpose2d", "iohw", kept="i"),
    "conv.ConvTranspose3d": _weighted("conv_transpose3d", "iodhw", kept="i"),
    "sparse.Embedding": LayerSpec("embedding", {"weight": Stored(("weight",), "no")}),
    "sparse.EmbeddingBag": LayerSpec("embedding_bag", {"weight": Stored(("weight",), "no")}),
    "batchnorm.BatchNorm1d": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "batchnorm.BatchNorm2d": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "batchnorm.BatchNorm3d": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    "batchnorm.SyncBatchNorm": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    # Lazy layers become their base class on the first call, but don't inherit from it before.
    "batchnorm._LazyNormBase": LayerSpec("batch_norm", _AFFINE | _STATISTICS),
    # With track_running_stats=True the statistics decide what eval computes; paddle has none, so they are not optional.
    "instancenorm.InstanceNorm1d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "instancenorm.InstanceNorm2d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "instancenorm.InstanceNorm3d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "instancenorm.LazyInstanceNorm1d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "instancenorm.LazyInstanceNorm2d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "instancenorm.LazyInstanceNorm3d": LayerSpec("instance_norm", _AFFINE | _STATISTICS),
    "normalization.LayerNorm": LayerSpec("layer_norm", _AFFINE),
    "normalization.GroupNorm": LayerSpec("group_norm", _AFFINE),
    "normalization.RMSNorm": LayerSpec("rms_norm", same("weight")),
    "activation.PReLU": LayerSpec("prelu", same("weight")),
    "rnn.LSTM": LayerSpec("lstm", _RECURRENT, atomic=True),
    "rnn.GRU": LayerSpec("gru", _RECURRENT, atomic=True),
    "rnn.RNN": LayerSpec("rnn", _RECURRENT, atomic=True),
    "rnn.LSTMCell": LayerSpec("lstm_cell", _CELL),
    "rnn.GRUCell": LayerSpec("gru_cell", _CELL),
    "rnn.RNNCell": LayerSpec("rnn_cell", _CELL),
    "activation.MultiheadAttention": LayerSpec("attention", _ATTENTION, atomic=True),
    "container.ParameterList": LayerSpec("parameter_list", same("*")),
    "container.ParameterDict": LayerSpec("parameter_dict", same("*")),
    "adaptive.AdaptiveLogSoftmaxWithLoss": LayerSpec(
        "adaptive_log_softmax_with_loss",
        {
            "head.weight": Stored(("head.weight",), "oi"),
            "head.bias": Stored(("head.bias",), "o"),
            "tail.*.weight": Stored(("tail.*.weight",), "oi"),
        },
        atomic=True,
    ),
    "loss.CrossEntropyLoss": LayerSpec("cross_entropy_loss", _CLASS_WEIGHT),
    "loss.NLLLoss": LayerSpec("nll_loss", _CLASS_WEIGHT),
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
    "sequential": "container.Sequential",
    "module_list": "container.ModuleList",
    "module_dict": "container.ModuleDict",
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
    "mish": "activation.Mish",
    "relu": "activation.ReLU",
    "relu6": "activation.ReLU6",
    "rrelu": "activation.RReLU",
    "selu": "activation.SELU",
    "sigmoid": "activation.Sigmoid",
    "silu": "activation.SiLU",
    "softmax": "activation.Softmax",
    "softmax2d": "activation.Softmax2d",
    "softmin": "activation.Softmin",
    "softplus": "activation.Softplus",
    "softshrink": "activation.Softshrink",
    "softsign": "activation.Softsign",
    "tanh": "activation.Tanh",
    "tanhshrink": "activation.Tanhshrink",
    "threshold": "activation.Threshold",
    "max_pool1d": "pooling.MaxPool1d",
    "max_pool2d": "pooling.MaxPool2d",
    "max_pool3d": "pooling.MaxPool3d",
    "avg_pool1d": "pooling.AvgPool1d",
    "avg_pool2d": "pooling.AvgPool2d",
    "avg_pool3d": "pooling.AvgPool3d",
    "adaptive_max_pool1d": "pooling.AdaptiveMaxPool1d",
    "adaptive_max_pool2d": "pooling.AdaptiveMaxPool2d",
    "adaptive_max_pool3d": "pooling.AdaptiveMaxPool3d",
    "adaptive_avg_pool1d": "pooling.AdaptiveAvgPool1d",
    "adaptive_avg_pool2d": "pooling.AdaptiveAvgPool2d",
    "adaptive_avg_pool3d": "pooling.AdaptiveAvgPool3d",
    "fractional_max_pool2d": "pooling.FractionalMaxPool2d",
    "fractional_max_pool3d": "pooling.FractionalMaxPool3d",
    "lp_pool1d": "pooling.LPPool1d",
    "lp_pool2d": "pooling.LPPool2d",
    "lp_pool3d": "pooling.LPPool3d",
    "max_unpool1d": "pooling.MaxUnpool1d",
    "max_unpool2d": "pooling.MaxUnpool2d",
    "max_unpool3d": "pooling.MaxUnpool3d",
    "dropout": "dropout.Dropout",
    "dropout1d": "dropout.Dropout1d",
    "dropout2d": "dropout.Dropout2d",
    "dropout3d": "dropout.Dropout3d",
    "alpha_dropout": "dropout.AlphaDropout",
    "feature_alpha_dropout": "dropout.FeatureAlphaDropout",
    "identity": "linear.Identity",
    "flatten": "flatten.Flatten",
    "unflatten": "flatten.Unflatten",
    "fold": "fold.Fold",
    "unfold": "fold.Unfold",
    "upsample": "upsampling.Upsample",
    "pixel_shuffle": "pixelshuffle.PixelShuffle",
    "pixel_unshuffle": "pixelshuffle.PixelUnshuffle",
    "channel_shuffle": "channelshuffle.ChannelShuffle",
    "pad1d": "padding.ConstantPad1d padding.CircularPad1d padding.ReflectionPad1d padding.ReplicationPad1d",
    "pad2d": "padding.ConstantPad2d padding.CircularPad2d padding.ReflectionPad2d padding.ReplicationPad2d",
    "pad3d": "padding.ConstantPad3d padding.CircularPad3d padding.ReflectionPad3d padding.ReplicationPad3d",
    "local_response_norm": "normalization.LocalResponseNorm normalization.CrossMapLRN2d",
    "cosine_similarity": "distance.CosineSimilarity",
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
    "smooth_l1_loss": "loss.SmoothL1Loss loss.HuberLoss",
    "soft_margin_loss": "loss.SoftMarginLoss",
    "triplet_margin_loss": "loss.TripletMarginLoss",
    "triplet_margin_with_distance_loss": "loss.TripletMarginWithDistanceLoss",
}

# torch.nn.utils.parametrize gives a parametrised layer a class of its own, whose children are no part of the model.
_PARAMETRISED = (
    "linear.Linear",
    "conv.Conv1d",
    "conv.Conv2d",
    "conv.Conv3d",
    "conv.ConvTranspose1d",
    "conv.ConvTranspose2d",
    "conv.ConvTranspose3d",
)

LAYERS: dict[str, LayerSpec] = (
    {f"torch.nn.modules.{path}": spec for path, spec in _WITH_TENSORS.items()}
    | {
        f"torch.nn.modules.{path}": LayerSpec(name)
        for name, paths in _WITHOUT_TENSORS.items()
        for path in paths.split()
    }
    | {
        f"torch.nn.utils.parametrize.Parametrized{path.rpartition('.')[2]}": replace(_WITH_TENSORS[path], atomic=True)
        for path in _PARAMETRISED
    }
)
"""Qualified class name to how the class stores its tensors; what is absent inherits from its bases."""
