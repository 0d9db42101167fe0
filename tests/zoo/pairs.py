"""Every pair of the zoo, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import paddle

from tests.zoo import language, twins, vision
from tests.zoo.convert import Converter, chained

Models = tuple[Any, Any, Any]
Check = Literal["aligned", "placed", "planted", "different"]


@dataclass(frozen=True)
class Pair:
    """Two implementations of one architecture."""

    name: str
    made_by: Callable[[bool], Models]
    """Base, raw and inputs; small, or at real depth."""
    convert: Converter | None
    """Base's state under raw's names and in raw's shapes, written by hand."""
    libraries: tuple[str, ...] = ()
    """Besides torch and paddle."""
    deep: bool = False
    """Whether there is a small and a deep one; otherwise the only one has real depth."""
    phase: Literal["both", "forward"] = "both"
    remark: str = ""
    """Why there is no converter, why forward only, what is special."""
    own: str = ""
    """Raw's tensors that base doesn't have, as a pattern: they stay as they were."""
    whole: str = ""
    """Raw's modules that base has as one, as a pattern: a bug inside is found at them."""
    really_different_at: str | None = None
    """The path in raw where a pair that looks equal and isn't must be found."""
    fails: Mapping[Check, str] = field(default_factory=dict)
    """What doesn't work yet, and why."""

    def build(self, small: bool) -> Models:
        """Base, raw and inputs; as often as wanted, though some name their parameters, and paddle takes a name once."""
        with paddle.utils.unique_name.guard():
            return self.made_by(small)


def same(state: dict[str, Any]) -> dict[str, Any]:
    """Both sides use the same names."""
    return dict(state)


def _paddle(name: str, convert: Converter, model: str = "", **more: Any) -> Pair:
    build = partial(vision.against_paddle, model or name, 64)
    return Pair(f"{name}: torchvision, paddle.vision", build, convert, ("torchvision",), **more)


def _several(
    architecture: str, one: str, other: str, build: Callable[..., Models], convert: Converter, **more: Any
) -> Pair:
    libraries = tuple(sorted({one, other}))
    return Pair(f"{architecture}: {one}, {other}", partial(build, one, other), convert, libraries, **more)


def _nlp(name: str, build: Callable[[bool], Models], convert: Converter, **more: Any) -> Pair:
    libraries = ("transformers", "paddlenlp")
    return Pair(f"{name}: transformers, paddlenlp", build, convert, libraries, deep=True, **more)


def _formers(name: str, build: Callable[[bool], Models], convert: Converter, **more: Any) -> Pair:
    libraries = ("transformers", "paddleformers")
    return Pair(f"{name}: transformers, paddleformers", build, convert, libraries, deep=True, **more)


_HF_ATTENTION = r"(.*\.attention)\.(?:attention|self)\..*"
_INDICES = r".*(relative_position_index|attn_mask)"

TWINS = (
    Pair("resnet18: torch, paddle.vision", twins.resnet18, twins.CNN),
    Pair("resnet18 in training: torch, paddle.vision", partial(twins.resnet18, training=True), twins.CNN),
    Pair("vgg11 without classifier: torch, paddle.vision", twins.vgg11, twins.CNN),
    Pair("mobilenet_v2: torch, paddle.vision", twins.mobilenet_v2, twins.CNN),
    Pair("LSTM classifier: torch.nn, paddle.nn", twins.lstm, twins.LSTM, deep=True),
    Pair(
        "Transformer: torch.nn, paddle.nn",
        twins.transformer,
        twins.TRANSFORMER,
        deep=True,
        whole=r"(.*\.(?:self|cross)_attn)\..*",
        remark="torch's attention calls no module inside",
    ),
)
"""Need nothing besides torch and paddle: these run with the other tests."""

VISION = (
    _paddle("resnet18", vision.PADDLE_CNN),
    Pair(
        "resnet18 in training: torchvision, paddle.vision",
        vision.resnet18_training,
        vision.PADDLE_CNN,
        ("torchvision",),
    ),
    _paddle("vgg11", vision.PADDLE_CNN),
    _paddle("mobilenet_v2", vision.PADDLE_CNN),
    _paddle("mobilenet_v3_small", vision.MOBILENET_V3),
    _paddle("densenet121", vision.DENSENET),
    _paddle("shufflenet_v2", vision.SHUFFLENET, "shufflenet_v2_x1_0"),
    Pair(
        "alexnet: torchvision, paddle.vision",
        vision.alexnet,
        vision.ALEXNET,
        ("torchvision",),
        really_different_at="_drop1",
        remark="paddle's dropout scales at inference",
    ),
    Pair(
        "squeezenet: torchvision, paddle.vision",
        vision.squeezenet,
        vision.SQUEEZENET,
        ("torchvision",),
        really_different_at="_pool",
        remark="torchvision's pools round up, paddle's down",
    ),
    Pair(
        "swin, a stage of one window: timm, ppcls",
        vision.swin_one_window,
        vision.SWIN_TO_PPCLS,
        ("timm", "ppcls"),
        own=_INDICES,
        really_different_at="layers.2.blocks.1",
        remark="where a stage is one window, timm doesn't shift, ppcls does",
    ),
    _several("resnet50", "torchvision", "timm", vision.resnet50, same),
    _several("resnet50", "torchvision", "transformers", vision.resnet50, vision.RESNET_TO_HF),
    _several("resnet50", "transformers", "timm", vision.resnet50, vision.RESNET_FROM_HF),
    Pair(
        "resnet50: timm, ppcls",
        vision.resnet50_ppcls,
        vision.RESNET_TO_PPCLS,
        ("timm", "ppcls"),
    ),
    _several("vit", "transformers", "timm", vision.vit, vision.VIT_FROM_HF, deep=True),
    _several("vit", "timm", "transformers", vision.vit, vision.VIT_TO_HF, deep=True),
    _several("vit", "torchvision", "timm", vision.vit, vision.VIT_FROM_TV, deep=True),
    _several("vit", "timm", "ppcls", vision.vit, vision.VIT_TO_PPCLS, deep=True),
    _several(
        "vit",
        "torchvision",
        "transformers",
        vision.vit,
        chained(vision.VIT_FROM_TV, vision.VIT_TO_HF),
        deep=True,
    ),
    _several(
        "vit",
        "transformers",
        "ppcls",
        vision.vit,
        chained(vision.VIT_FROM_HF, vision.VIT_TO_PPCLS),
        deep=True,
    ),
    Pair("deit: timm, ppcls", vision.deit, vision.VIT_TO_PPCLS, ("timm", "ppcls"), deep=True),
    _several("swin", "timm", "ppcls", vision.swin, vision.SWIN_TO_PPCLS, deep=True, own=_INDICES),
    _several("swin", "timm", "transformers", vision.swin, vision.SWIN_TO_HF, deep=True, own=_INDICES),
    _several("swin", "torchvision", "timm", vision.swin, vision.SWIN_FROM_TV, deep=True, own=_INDICES),
    Pair(
        "beit: timm, transformers",
        vision.beit,
        vision.BEIT_TO_HF,
        ("timm", "transformers"),
        deep=True,
        whole=_HF_ATTENTION,
        remark="timm's fused projection is a weight that no module is called for",
    ),
    Pair(
        "swinv2: timm, transformers",
        vision.swinv2,
        vision.SWINV2_TO_HF,
        ("timm", "transformers"),
        deep=True,
        own=_INDICES,
        whole=_HF_ATTENTION,
        remark="timm's fused projection is a weight that no module is called for",
    ),
    Pair("pvt_v2_b0: timm, ppcls", vision.pvt, vision.PVT, ("timm", "ppcls")),
    Pair("tnt: timm, ppcls", vision.tnt, vision.TNT, ("timm", "ppcls"), deep=True),
    _several("convnext", "timm", "ppcls", vision.convnext, vision.CONVNEXT_TO_PPCLS, deep=True),
    _several("convnext", "timm", "transformers", vision.convnext, vision.CONVNEXT_TO_HF, deep=True),
    _several("convnext", "torchvision", "timm", vision.convnext, vision.CONVNEXT_FROM_TV, deep=True),
    Pair("regnet_x_200mf: timm, ppcls", vision.regnet, vision.REGNET, ("timm", "ppcls")),
    Pair("regnet_x_400mf: torchvision, timm", vision.regnet_torch, vision.REGNET_TORCH, ("torchvision", "timm")),
    Pair("densenet121: timm, ppcls", vision.densenet_ppcls, vision.DENSENET, ("timm", "ppcls")),
    Pair(
        "shufflenet_v2: torchvision, ppcls",
        vision.shufflenet_ppcls,
        vision.SHUFFLENET_PPCLS,
        ("torchvision", "ppcls"),
    ),
    Pair("efficientnet_b0: torchvision, timm", vision.efficientnet_torch, vision.EFFICIENTNET, ("torchvision", "timm")),
    Pair(
        "mobilenet_v2: timm, torchvision",
        vision.mobilenet_v2_torch,
        vision.MOBILENET_V2_TORCH,
        ("timm", "torchvision"),
    ),
)

LANGUAGE = (
    _nlp("bert", language.bert, language.ENCODER),
    _nlp(
        "bert for masked words",
        language.bert_masked,
        language.BERT_MASKED,
        own=r"bert\.pooler\..*",
        remark="paddlenlp builds a pooler that it doesn't use",
    ),
    _nlp("ernie", language.ernie, language.ENCODER),
    _nlp("roberta", language.roberta, language.ENCODER),
    _nlp("electra", language.electra, language.ENCODER),
    _nlp("albert", language.albert, language.ALBERT, own=r".*position_ids"),
    _nlp("mpnet", language.mpnet, language.MPNET),
    _nlp("deberta", language.deberta, language.DEBERTA),
    _nlp("funnel", language.funnel, language.FUNNEL),
    _nlp("gpt2", language.gpt2, language.GPT2),
    _nlp("opt", language.opt, language.OPT),
    _nlp("bloom", language.bloom, language.BLOOM),
    _nlp("mistral", language.mistral, language.MISTRAL),
    _nlp("gemma", language.gemma, language.GEMMA),
    _nlp("codegen", language.codegen, language.CODEGEN),
    _nlp("mamba", language.mamba, language.MAMBA),
    _formers("llama", language.llama, language.LLAMA),
    _formers("phi3", language.phi3, language.LLAMA),
    _nlp("t5", language.t5, language.T5),
    _nlp("bart", language.bart, language.BART),
    _nlp("xlnet", language.xlnet, language.XLNET),
    _nlp("clip", language.clip, language.CLIP, own=r".*position_ids"),
)

PAIRS = (*TWINS, *VISION, *LANGUAGE)
