"""Models of images: torchvision, timm, transformers, paddle.vision and paddleclas against each other."""

from __future__ import annotations

import importlib
import re
from functools import partial
from typing import Any

import numpy as np

from tests.zoo import libraries
from tests.zoo.convert import BATCH_NORM, COUNTED, chained, joined, renaming, reshaped, split
from tests.zoo.prepare import calibrated, randomised, seeded

Models = tuple[Any, Any, Any]

CLASSES = 7
"""Of every head: no other dimension is that small."""


def images(size: int, rows: int = 2) -> np.ndarray:
    return seeded().normal(size=(rows, 3, size, size)).astype("float32")


def _tv() -> Any:
    return libraries.load("torchvision").models


def _timm() -> Any:
    return libraries.load("timm")


def _hf() -> Any:
    return libraries.load("transformers")


def _pv() -> Any:
    import paddle

    return paddle.vision.models


def _ppcls(module: str) -> Any:
    libraries.load("ppcls")
    importlib.import_module("ppcls.utils.logger").init_logger()
    return importlib.import_module(f"ppcls.arch.backbone.{module}")


def _cnn(base: Any, raw: Any, size: int) -> Models:
    calibrated(base, (6, 3, size, size))
    raw.eval()
    return base, raw, images(size)


def _transformer(base: Any, raw: Any, size: int) -> Models:
    randomised(base)
    raw.eval()
    return base, raw, images(size)


PADDLE_CNN = renaming(*BATCH_NORM, turned=r".*(fc|classifier|out|head).*weight", dropped=COUNTED)
"""The same names on both sides: torchvision and paddle.vision."""


# ------------------------------------------------------------------ torchvision and paddle.vision


def against_paddle(name: str, size: int, small: bool, **more: Any) -> Models:
    """A model that both define under one name."""
    seeded()
    base = getattr(_tv(), name)(num_classes=CLASSES, **more)
    return _cnn(base, getattr(_pv(), name)(num_classes=CLASSES), size)


def resnet18_training(small: bool) -> Models:
    base, raw, x = against_paddle("resnet18", 64, small)
    base.train()
    raw.train()
    return base, raw, x


def alexnet(small: bool) -> Models:
    seeded()
    base, raw = _tv().alexnet(num_classes=CLASSES), _pv().alexnet(num_classes=CLASSES)
    randomised(base)
    raw.eval()
    return base, raw, images(224)


ALEXNET = renaming(
    (r"^features\.0\.", "_conv1._conv."),
    (r"^features\.3\.", "_conv2._conv."),
    (r"^features\.6\.", "_conv3."),
    (r"^features\.8\.", "_conv4."),
    (r"^features\.10\.", "_conv5._conv."),
    (r"^classifier\.1\.", "_fc6."),
    (r"^classifier\.4\.", "_fc7."),
    (r"^classifier\.6\.", "_fc8."),
    turned=r"_fc.*",
)


def squeezenet(small: bool) -> Models:
    """Really different: torchvision's pools round up, paddle's down. At 224 the second pool is the first to tell."""
    seeded()
    base, raw = _tv().squeezenet1_0(num_classes=CLASSES), _pv().squeezenet1_0(num_classes=CLASSES)
    randomised(base)
    raw.eval()
    return base, raw, images(224)


_FIRES = {"3": "1", "4": "2", "5": "3", "7": "4", "8": "5", "9": "6", "10": "7", "12": "8"}
SQUEEZENET = renaming(
    (r"^features\.0\.", "_conv."),
    (r"^features\.(\d+)\.(\w+)\.", lambda m: f"_conv{_FIRES[m[1]]}.{m[2]}._conv."),
    (r"squeeze", "_conv"),
    (r"expand1x1", "_conv_path1"),
    (r"expand3x3", "_conv_path2"),
    (r"^classifier\.1\.", "_conv9."),
)

MOBILENET_V3 = renaming(
    *BATCH_NORM,
    (r"^features\.0\.", "conv."),
    (r"^features\.12\.", "lastconv."),
    (r"^features\.(\d+)\.block\.", lambda m: f"blocks.{int(m[1]) - 1}."),
    (r"^blocks\.0\.0\.", "blocks.0.bottleneck_conv."),
    (r"^blocks\.0\.1\.", "blocks.0.mid_se."),
    (r"^blocks\.0\.2\.", "blocks.0.linear_conv."),
    (r"^(blocks\.\d+)\.0\.", r"\1.expand_conv."),
    (r"^(blocks\.\d+)\.1\.", r"\1.bottleneck_conv."),
    (r"^(blocks\.[12])\.2\.", r"\1.linear_conv."),
    (r"^(blocks\.\d+)\.2\.", r"\1.mid_se."),
    (r"^(blocks\.\d+)\.3\.", r"\1.linear_conv."),
    turned=r"classifier.*weight",
    dropped=COUNTED,
)

DENSENET = renaming(
    *BATCH_NORM,
    (r"^features\.conv0", "conv1_func._conv"),
    (r"^features\.norm0", "conv1_func._batch_norm"),
    (r"^features\.norm5", "batch_norm"),
    (
        r"^features\.denseblock(\d+)\.denselayer(\d+)\.(norm|conv)(\d)",
        lambda m: f"db_conv_{int(m[1]) + 1}.conv{int(m[1]) + 1}_{m[2]}.bn_ac_func{m[4]}._{_LAYER[m[3]]}",
    ),
    (
        r"^features\.transition(\d+)\.(norm|conv)",
        lambda m: f"tr_conv{int(m[1]) + 1}_blk.conv_ac_func._{_LAYER[m[2]]}",
    ),
    (r"^classifier", "out"),
    turned=r"out\.weight",
    dropped=COUNTED,
)
_LAYER = {"norm": "batch_norm", "conv": "conv"}

SHUFFLENET = renaming(
    *BATCH_NORM,
    (r"^conv1\.", "_conv1."),
    (r"^conv5\.", "_last_conv."),
    (r"^fc\.", "_fc."),
    (r"^stage(\d)\.(\d+)\.", lambda m: f"{m[1]}_{int(m[2]) + 1}."),
    (r"^(\d_1)\.branch1\.(\d)\.", lambda m: f"{m[1]}.{_SHUFFLE_1[m[2]]}."),
    (r"^(\d_1)\.branch2\.(\d)\.", lambda m: f"{m[1]}.{_SHUFFLE_2[m[2]].replace('#', '_2')}."),
    (r"^(\d_\d+)\.branch2\.(\d)\.", lambda m: f"{m[1]}.{_SHUFFLE_2[m[2]].replace('#', '')}."),
    turned=r"_fc\.weight",
    dropped=COUNTED,
)
_SHUFFLE_1 = {"0": "_conv_dw_1.0", "1": "_conv_dw_1.1", "2": "_conv_linear_1.0", "3": "_conv_linear_1.1"}
_SHUFFLE_2 = {
    "0": "_conv_pw#.0",
    "1": "_conv_pw#.1",
    "3": "_conv_dw#.0",
    "4": "_conv_dw#.1",
    "5": "_conv_linear#.0",
    "6": "_conv_linear#.1",
}


# ------------------------------------------------------------------ ResNet-50 of three torch libraries


def _resnet50(library: str, small: bool) -> Any:
    if library == "torchvision":
        return _tv().resnet50(num_classes=CLASSES)
    if library == "timm":
        return _timm().create_model("resnet50", num_classes=CLASSES)
    return _hf().ResNetForImageClassification(_hf().ResNetConfig(num_labels=CLASSES))


def resnet50(one: str, other: str, small: bool) -> Models:
    seeded()
    return _cnn(_resnet50(one, small), _resnet50(other, small), 64)


RESNET_TO_HF = renaming(
    (r"^conv1\.", "resnet.embedder.embedder.convolution."),
    (r"^bn1\.", "resnet.embedder.embedder.normalization."),
    (r"^fc\.", "classifier.1."),
    (r"^layer(\d)\.(\d+)\.", lambda m: f"resnet.encoder.stages.{int(m[1]) - 1}.layers.{m[2]}."),
    (r"downsample\.0", "shortcut.convolution"),
    (r"downsample\.1", "shortcut.normalization"),
    (r"\.conv(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.convolution."),
    (r"\.bn(\d)\.", lambda m: f".layer.{int(m[1]) - 1}.normalization."),
)
RESNET_FROM_HF = renaming(
    (r"^resnet\.embedder\.embedder\.convolution\.", "conv1."),
    (r"^resnet\.embedder\.embedder\.normalization\.", "bn1."),
    (r"^classifier\.1\.", "fc."),
    (r"^resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.", lambda m: f"layer{int(m[1]) + 1}.{m[2]}."),
    (r"shortcut\.convolution", "downsample.0"),
    (r"shortcut\.normalization", "downsample.1"),
    (r"\.layer\.(\d)\.convolution\.", lambda m: f".conv{int(m[1]) + 1}."),
    (r"\.layer\.(\d)\.normalization\.", lambda m: f".bn{int(m[1]) + 1}."),
)


# ------------------------------------------------------------------ ViT of four libraries

_VIT = {"image": 32, "patch": 8, "width": 48, "heads": 4, "inner": 96, "eps": 1e-6}


def _vit(library: str, small: bool) -> Any:
    import torch

    v, depth = _VIT, 2 if small else 12
    norm = partial(torch.nn.LayerNorm, eps=v["eps"])
    if library == "timm":
        return _timm().models.vision_transformer.VisionTransformer(
            img_size=v["image"],
            patch_size=v["patch"],
            embed_dim=v["width"],
            depth=depth,
            num_heads=v["heads"],
            mlp_ratio=v["inner"] / v["width"],
            num_classes=CLASSES,
            norm_layer=norm,
        )
    if library == "torchvision":
        return _tv().VisionTransformer(
            v["image"], v["patch"], depth, v["heads"], v["width"], v["inner"], num_classes=CLASSES, norm_layer=norm
        )
    if library == "transformers":
        settings = _hf().ViTConfig(
            hidden_size=v["width"],
            num_hidden_layers=depth,
            num_attention_heads=v["heads"],
            intermediate_size=v["inner"],
            image_size=v["image"],
            patch_size=v["patch"],
            num_labels=CLASSES,
            layer_norm_eps=v["eps"],
            attn_implementation="eager",
        )
        return _hf().ViTForImageClassification(settings)
    return _ppcls("model_zoo.vision_transformer").VisionTransformer(
        img_size=v["image"],
        patch_size=v["patch"],
        embed_dim=v["width"],
        depth=depth,
        num_heads=v["heads"],
        mlp_ratio=v["inner"] / v["width"],
        class_num=CLASSES,
        qkv_bias=True,
        epsilon=v["eps"],
    )


def vit(one: str, other: str, small: bool) -> Models:
    seeded()
    base, raw = _vit(one, small), _vit(other, small)
    if one == "torchvision":  # its head starts as zeros
        import torch

        torch.nn.init.normal_(base.heads.head.weight, std=0.1)
    return _transformer(base, raw, _VIT["image"])


_HF_VIT = (
    (r"^vit\.embeddings\.cls_token", "cls_token"),
    (r"^vit\.embeddings\.position_embeddings", "pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^vit\.encoder\.layer\.", "blocks."),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.output\.dense", "attn.proj"),
    (r"attention\.attention\.", "attn."),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"output\.dense", "mlp.fc2"),
    (r"^vit\.layernorm", "norm"),
    (r"^classifier", "head"),
)
VIT_FROM_HF = chained(
    renaming(*_HF_VIT),
    joined(
        "{0}.attn.qkv.{1}",
        *(rf"(.*)\.attn\.{part}\.(weight|bias)" for part in ("query", "key", "value")),
    ),
)
VIT_TO_HF = chained(
    split(
        r"(.*)\.attn\.qkv\.(weight|bias)",
        *(rf"\1.attn.{part}.\2" for part in ("query", "key", "value")),
    ),
    renaming(
        (r"^cls_token", "vit.embeddings.cls_token"),
        (r"^pos_embed", "vit.embeddings.position_embeddings"),
        (r"^patch_embed\.proj", "vit.embeddings.patch_embeddings.projection"),
        (r"^blocks\.", "vit.encoder.layer."),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"attn\.proj", "attention.output.dense"),
        (r"attn\.", "attention.attention."),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
        (r"^norm\.", "vit.layernorm."),
        (r"^head", "classifier"),
    ),
)
VIT_FROM_TV = renaming(
    (r"^class_token", "cls_token"),
    (r"^encoder\.pos_embedding", "pos_embed"),
    (r"^conv_proj", "patch_embed.proj"),
    (r"^encoder\.layers\.encoder_layer_", "blocks."),
    (r"ln_(\d)", r"norm\1"),
    (r"self_attention\.in_proj_", "attn.qkv."),
    (r"self_attention\.out_proj", "attn.proj"),
    (r"mlp\.0\.", "mlp.fc1."),
    (r"mlp\.3\.", "mlp.fc2."),
    (r"^encoder\.ln", "norm"),
    (r"^heads\.head", "head"),
)
VIT_TO_PPCLS = renaming(turned=r"(?!pos_embed|cls_token).*weight")


# ------------------------------------------------------------------ DeiT, Swin, ConvNeXt


def deit(small: bool) -> Models:
    seeded()
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2 if small else 12, "num_heads": 4}
    base = _timm().models.deit.VisionTransformerDistilled(**settings, num_classes=CLASSES)
    raw = _ppcls("model_zoo.distilled_vision_transformer").DistilledVisionTransformer(
        **settings, class_num=CLASSES, qkv_bias=True, epsilon=1e-6
    )
    return _transformer(base, raw, 32)


_SWIN = {"patch": 4, "window": 4, "width": 24}


def _swin(library: str, small: bool, image: int) -> Any:
    depths, heads = ([2, 2], [2, 4]) if small else ([2, 2, 6], [2, 4, 8])
    s = _SWIN | {"image": image}
    if library == "timm":
        return _timm().models.swin_transformer.SwinTransformer(
            img_size=s["image"],
            patch_size=s["patch"],
            window_size=s["window"],
            embed_dim=s["width"],
            depths=depths,
            num_heads=heads,
            num_classes=CLASSES,
            drop_path_rate=0.0,
        )
    if library == "transformers":
        settings = _hf().SwinConfig(
            image_size=s["image"],
            patch_size=s["patch"],
            window_size=s["window"],
            embed_dim=s["width"],
            depths=depths,
            num_heads=heads,
            num_labels=CLASSES,
            drop_path_rate=0.0,
            attn_implementation="eager",
        )
        return _hf().SwinForImageClassification(settings)
    if library == "torchvision":
        return _tv().SwinTransformer(
            [s["patch"]] * 2,
            s["width"],
            depths,
            heads,
            [s["window"]] * 2,
            num_classes=CLASSES,
            stochastic_depth_prob=0.0,
        )
    return _ppcls("legendary_models.swin_transformer").SwinTransformer(
        img_size=s["image"],
        patch_size=s["patch"],
        window_size=s["window"],
        embed_dim=s["width"],
        depths=depths,
        num_heads=heads,
        class_num=CLASSES,
        drop_path_rate=0.0,
    )


def swin(one: str, other: str, small: bool) -> Models:
    seeded()
    image = 64 if small else 128  # the last stage must be larger than a window
    return _transformer(_swin(one, small, image), _swin(other, small, image), image)


def swin_one_window(small: bool) -> Models:
    """Really different: where a stage is one window, timm doesn't shift, ppcls does. The third stage is."""
    seeded()
    return _transformer(_swin("timm", False, 64), _swin("ppcls", False, 64), 64)


SWIN_TO_PPCLS = renaming(
    (r"^layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample"),
    (r"^head\.fc", "head"),
    turned=r"(?!.*(table|index)).*weight",
)
SWIN_TO_HF = chained(
    split(r"(.*)\.attn\.qkv\.(weight|bias)", *(rf"\1.attn.{part}.\2" for part in ("query", "key", "value"))),
    renaming(
        (r"^layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample"),
        (r"^layers", "swin.encoder.layers"),
        (r"^patch_embed\.proj", "swin.embeddings.patch_embeddings.projection"),
        (r"^patch_embed\.norm", "swin.embeddings.norm"),
        (r"^norm", "swin.layernorm"),
        (r"^head\.fc", "classifier"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"attn\.proj", "attention.output.dense"),
        (r"attn\.", "attention.self."),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
    ),
)
_PARTS_BESIDE = (
    split(r"(.*)\.attn\.qkv\.(weight)", *(rf"\1.attn.{part}.\2" for part in ("query", "key", "value"))),
    renaming((r"attn\.q_bias", "attn.query.bias"), (r"attn\.v_bias", "attn.value.bias"), dropped=r".*attn\.k_bias"),
)
"""timm keeps the biases of query and value beside the fused weight, and none of the key."""


def beit(small: bool) -> Models:
    seeded()
    depth = 2 if small else 12
    base = _timm().models.beit.Beit(
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=depth,
        num_heads=3,
        num_classes=CLASSES,
        init_values=0.1,
        use_abs_pos_emb=False,
        use_rel_pos_bias=True,
    )
    settings = _hf().BeitConfig(
        image_size=32,
        patch_size=8,
        hidden_size=24,
        num_hidden_layers=depth,
        num_attention_heads=3,
        intermediate_size=96,
        num_labels=CLASSES,
        layer_scale_init_value=0.1,
        use_relative_position_bias=True,
        use_mean_pooling=True,
        layer_norm_eps=1e-6,
        drop_path_rate=0.0,
        attn_implementation="eager",
    )
    return _transformer(_tables(base), _hf().BeitForImageClassification(settings), 32)


def _tables(model: Any) -> Any:
    """Tables of position biases that begin as zeros: give them values."""
    import torch

    generator = torch.Generator().manual_seed(5)
    for name, tensor in model.named_parameters():
        if "table" in name or "cls_token" in name:
            tensor.data.copy_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model


BEIT_TO_HF = chained(
    *_PARTS_BESIDE,
    renaming(
        (r"^cls_token", "beit.embeddings.cls_token"),
        (r"^patch_embed\.proj", "beit.embeddings.patch_embeddings.projection"),
        (r"^blocks\.", "beit.encoder.layer."),
        (r"gamma_", "lambda_"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"attn\.proj", "attention.output.dense"),
        (r"attn\.relative_position_bias_table", "attn.relative_position_bias.relative_position_bias_table"),
        (r"attn\.", "attention.attention."),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
        (r"^fc_norm", "beit.pooler.layernorm"),
        (r"^head", "classifier"),
        dropped=r".*relative_position_index",
    ),
)


def swinv2(small: bool) -> Models:
    seeded()
    depths, heads = ([2, 2], [2, 4]) if small else ([2, 2, 6], [2, 4, 8])
    image = 32 if small else 64
    base = _timm().models.swin_transformer_v2.SwinTransformerV2(
        img_size=image,
        patch_size=2,
        embed_dim=16,
        depths=depths,
        num_heads=heads,
        window_size=4,
        num_classes=CLASSES,
        drop_path_rate=0.0,
    )
    settings = _hf().Swinv2Config(
        image_size=image,
        patch_size=2,
        embed_dim=16,
        depths=depths,
        num_heads=heads,
        window_size=4,
        num_labels=CLASSES,
        drop_path_rate=0.0,
    )
    return _transformer(base, _hf().Swinv2ForImageClassification(settings), image)


SWINV2_TO_HF = chained(
    *_PARTS_BESIDE,
    renaming(
        (r"^layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample"),
        (r"^layers", "swinv2.encoder.layers"),
        (r"^patch_embed\.proj", "swinv2.embeddings.patch_embeddings.projection"),
        (r"^patch_embed\.norm", "swinv2.embeddings.norm"),
        (r"^norm", "swinv2.layernorm"),
        (r"^head\.fc", "classifier"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"cpb_mlp", "continuous_position_bias_mlp"),
        (r"attn\.proj", "attention.output.dense"),
        (r"attn\.", "attention.self."),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
    ),
)
SWIN_FROM_TV = renaming(
    (r"^features\.0\.0", "patch_embed.proj"),
    (r"^features\.0\.2", "patch_embed.norm"),
    (r"^features\.(\d)\.(reduction|norm)\.", lambda m: f"layers.{int(m[1]) // 2}.downsample.{m[2]}."),
    (r"^features\.(\d)\.(\d)", lambda m: f"layers.{int(m[1]) // 2}.blocks.{m[2]}"),
    (r"mlp\.0", "mlp.fc1"),
    (r"mlp\.3", "mlp.fc2"),
    (r"^head", "head.fc"),
    dropped=r".*relative_position_index",
)


def _convnext(library: str, small: bool) -> Any:
    depths = [1, 2, 1, 1] if small else [3, 3, 9, 3]
    dims = [12, 20, 28, 36]
    if library == "timm":
        return _timm().models.convnext.ConvNeXt(depths=depths, dims=dims, num_classes=CLASSES, ls_init_value=0.5)
    if library == "transformers":
        settings = _hf().ConvNextConfig(
            depths=depths, hidden_sizes=dims, num_labels=CLASSES, layer_scale_init_value=0.5, layer_norm_eps=1e-6
        )
        return _hf().ConvNextForImageClassification(settings)
    if library == "torchvision":
        from torchvision.models.convnext import CNBlockConfig, ConvNeXt

        blocks = [
            CNBlockConfig(dim, after, count) for dim, after, count in zip(dims, [*dims[1:], None], depths, strict=True)
        ]
        return ConvNeXt(blocks, num_classes=CLASSES, layer_scale=0.5)
    return _ppcls("model_zoo.convnext").ConvNeXt(
        class_num=CLASSES, depths=depths, dims=dims, layer_scale_init_value=0.5
    )


def convnext(one: str, other: str, small: bool) -> Models:
    seeded()
    return _transformer(_convnext(one, small), _convnext(other, small), 64)


CONVNEXT_TO_PPCLS = renaming(
    (r"^stem\.", "downsample_layers.0."),
    (r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
    (r"^stages\.(\d)\.blocks\.", r"stages.\1."),
    (r"conv_dw", "dwconv"),
    (r"mlp\.fc(\d)", r"pwconv\1"),
    (r"^head\.norm", "norm"),
    (r"^head\.fc", "head"),
    turned=r"(pwconv|head|.*\.pwconv).*weight",
)
CONVNEXT_TO_HF = renaming(
    (r"^stem\.0", "convnext.embeddings.patch_embeddings"),
    (r"^stem\.1", "convnext.embeddings.layernorm"),
    (r"^stages\.(\d)\.downsample\.", r"convnext.encoder.stages.\1.downsampling_layer."),
    (r"^stages\.(\d)\.blocks\.", r"convnext.encoder.stages.\1.layers."),
    (r"gamma", "layer_scale_parameter"),
    (r"conv_dw", "dwconv"),
    (r"mlp\.fc(\d)", r"pwconv\1"),
    (r"(layers\.\d+)\.norm", r"\1.layernorm"),
    (r"^head\.norm", "convnext.layernorm"),
    (r"^head\.fc", "classifier"),
)
CONVNEXT_FROM_TV = chained(
    reshaped(r".*layer_scale", lambda array: array.reshape(-1)),
    renaming(
        (r"^features\.0\.", "stem."),
        (r"^features\.([246])\.", lambda m: f"stages.{int(m[1]) // 2}.downsample."),
        (r"^features\.([1357])\.", lambda m: f"stages.{int(m[1]) // 2}.blocks."),
        (r"block\.0", "conv_dw"),
        (r"block\.2", "norm"),
        (r"block\.3", "mlp.fc1"),
        (r"block\.5", "mlp.fc2"),
        (r"layer_scale", "gamma"),
        (r"^classifier\.0", "head.norm"),
        (r"^classifier\.2", "head.fc"),
    ),
)


# ------------------------------------------------------------------ PVT v2 and TNT


def pvt(small: bool) -> Models:
    seeded()
    base = _timm().create_model("pvt_v2_b0", num_classes=CLASSES)
    return _transformer(base, _ppcls("model_zoo.pvt_v2").PVT_V2_B0(class_num=CLASSES), 64)


def _next(match: re.Match[str]) -> str:
    """timm counts stages from 0, paddleclas from 1."""
    return f"{match[2]}{int(match[1]) + 1}"


PVT = renaming(
    (r"^patch_embed\.", "patch_embed1."),
    (r"^stages\.(\d)\.(norm)(?=\.)", _next),
    (r"^stages\.(\d)\.downsample", lambda m: f"patch_embed{int(m[1]) + 1}"),
    (r"^stages\.(\d)\.(block)s", _next),
    (r"dwconv\.", "dwconv.dwconv."),
    turned=r".*(attn\.(q|kv|proj)|mlp\.fc[12]|^head)\.weight",
)


def tnt(small: bool) -> Models:
    seeded()
    depth = 2 if small else 12
    base = _timm().create_model("tnt_s_patch16_224", num_classes=CLASSES, img_size=64, depth=depth)
    raw = _ppcls("model_zoo.tnt").TNT(
        img_size=64, embed_dim=384, in_dim=24, depth=depth, num_heads=6, in_num_head=4, class_num=CLASSES
    )
    return _transformer(base, raw, 64)


TNT = chained(
    reshaped("pixel_pos", lambda array: array.reshape(1, 24, 16).transpose(0, 2, 1)),
    renaming(turned=r"(.*\.(qk|v|proj|fc[12])|proj|head)\.weight(?<!pixel_embed\.proj\.weight)"),
)


# ------------------------------------------------------------------ CNNs of timm, torchvision and paddleclas


def regnet(small: bool) -> Models:
    seeded()
    base = _timm().create_model("regnetx_002", num_classes=CLASSES)
    return _cnn(base, _ppcls("model_zoo.regnet").RegNetX_200MF(class_num=CLASSES), 64)


REGNET = renaming(
    *BATCH_NORM,
    (r"^stem\.", "conv."),
    (r"^s(\d)\.b(\d+)\.", r"s\1_b\2."),
    (r"\.conv(\d)\.", lambda m: f".conv{int(m[1]) - 1}."),
    (r"downsample", "short"),
    (r"\.conv\.(weight|bias)", r"._conv.\1"),
    (r"\.bn\.", "._batch_norm."),
    (r"^head\.fc", "out"),
    turned=r"out\.weight",
    dropped=COUNTED,
)


def regnet_torch(small: bool) -> Models:
    seeded()
    base = _tv().regnet_x_400mf(num_classes=CLASSES)
    return _cnn(base, _timm().create_model("regnetx_004_tv", num_classes=CLASSES), 64)


_REGNET_LAYERS = {"a": "conv1", "b": "conv2", "c": "conv3"}
REGNET_TORCH = renaming(
    (r"^stem\.0", "stem.conv"),
    (r"^stem\.1", "stem.bn"),
    (r"^trunk_output\.block(\d)\.block\d-(\d+)\.", lambda m: f"s{m[1]}.b{int(m[2]) + 1}."),
    (r"proj\.0", "downsample.conv"),
    (r"proj\.1", "downsample.bn"),
    (r"f\.([abc])\.0", lambda m: f"{_REGNET_LAYERS[m[1]]}.conv"),
    (r"f\.([abc])\.1", lambda m: f"{_REGNET_LAYERS[m[1]]}.bn"),
    (r"^fc", "head.fc"),
)


def densenet_ppcls(small: bool) -> Models:
    seeded()
    base = _timm().create_model("densenet121", num_classes=CLASSES)
    return _cnn(base, _ppcls("model_zoo.densenet").DenseNet121(class_num=CLASSES), 64)


def shufflenet_ppcls(small: bool) -> Models:
    seeded()
    base = _tv().shufflenet_v2_x1_0(num_classes=CLASSES)
    return _cnn(base, _ppcls("model_zoo.shufflenet_v2").ShuffleNetV2_x1_0(class_num=CLASSES), 64)


SHUFFLENET_PPCLS = chained(
    SHUFFLENET,
    renaming(
        (r"^(_conv1|_last_conv|.*_conv_\w+)\.0\.", r"\1._conv."),
        (r"^(_conv1|_last_conv|.*_conv_\w+)\.1\.", r"\1._batch_norm."),
    ),
)


def efficientnet_torch(small: bool) -> Models:
    seeded()
    base = _tv().efficientnet_b0(num_classes=CLASSES, stochastic_depth_prob=0.0)
    return _cnn(base, _timm().create_model("efficientnet_b0", num_classes=CLASSES), 64)


_FIRST = {"0.0": "conv_dw", "0.1": "bn1", "1.fc1": "se.conv_reduce", "1.fc2": "se.conv_expand"}
_FIRST |= {"2.0": "conv_pw", "2.1": "bn2"}
_OTHER = {"0.0": "conv_pw", "0.1": "bn1", "1.0": "conv_dw", "1.1": "bn2"}
_OTHER |= {"2.fc1": "se.conv_reduce", "2.fc2": "se.conv_expand", "3.0": "conv_pwl", "3.1": "bn3"}
EFFICIENTNET = renaming(
    (r"^features\.0\.0\.", "conv_stem."),
    (r"^features\.0\.1\.", "bn1."),
    (r"^features\.8\.0\.", "conv_head."),
    (r"^features\.8\.1\.", "bn2."),
    (r"^features\.1\.(\d)\.block\.(\d\.\w+)\.", lambda m: f"blocks.0.{m[1]}.{_FIRST[m[2]]}."),
    (
        r"^features\.(\d)\.(\d)\.block\.(\d\.\w+)\.",
        lambda m: f"blocks.{int(m[1]) - 1}.{m[2]}.{_OTHER[m[3]]}.",
    ),
    (r"^classifier\.1\.", "classifier."),
)


def mobilenet_v2_torch(small: bool) -> Models:
    seeded()
    base = _timm().create_model("mobilenetv2_100", num_classes=CLASSES)
    return _cnn(base, _tv().mobilenet_v2(num_classes=CLASSES), 64)


_STARTS = (1, 2, 4, 7, 11, 14, 17)
"""Of timm's stages, in torchvision's numbering of blocks."""
_SEPARABLE = {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
_INVERTED = {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}
MOBILENET_V2_TORCH = renaming(
    (r"^conv_stem\.", "features.0.0."),
    (r"^bn1\.", "features.0.1."),
    (r"^conv_head\.", "features.18.0."),
    (r"^bn2\.", "features.18.1."),
    (r"^blocks\.0\.0\.(\w+)\.", lambda m: f"features.1.conv.{_SEPARABLE[m[1]]}."),
    (
        r"^blocks\.(\d)\.(\d)\.(\w+)\.",
        lambda m: f"features.{_STARTS[int(m[1])] + int(m[2])}.conv.{_INVERTED[m[3]]}.",
    ),
    (r"^classifier\.", "classifier.1."),
)


def resnet50_ppcls(small: bool) -> Models:
    seeded()
    base = _timm().create_model("resnet50", num_classes=CLASSES)
    return _cnn(base, _ppcls("legendary_models.resnet").ResNet50(class_num=CLASSES), 64)


_BLOCKS = {"1": 0, "2": 3, "3": 7, "4": 13}
"""Blocks before each stage of ResNet-50."""
RESNET_TO_PPCLS = renaming(
    *BATCH_NORM,
    (r"^conv1\.", "stem.0.conv."),
    (r"^bn1\.", "stem.0.bn."),
    (r"^layer(\d)\.(\d)\.", lambda m: f"blocks.{_BLOCKS[m[1]] + int(m[2])}."),
    (r"^(blocks\.\d+)\.conv(\d)\.", lambda m: f"{m[1]}.conv{int(m[2]) - 1}.conv."),
    (r"^(blocks\.\d+)\.bn(\d)\.", lambda m: f"{m[1]}.conv{int(m[2]) - 1}.bn."),
    (r"downsample\.0", "short.conv"),
    (r"downsample\.1", "short.bn"),
    turned=r"fc\.weight",
    dropped=COUNTED,
)
