"""Pairs as they are trained: with dropout, in attention too, and with drop path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.zoo import language, vision
from tests.zoo.prepare import randomised, seeded

Models = tuple[Any, Any, Any]

DROPS = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}


def _trained(base: Any, raw: Any, inputs: Any) -> Models:
    seeded()
    randomised(base)
    base.train()
    raw.train()
    return base, raw, inputs


def _words(base: Any, raw: Any, **more: Any) -> Models:
    ids = language.tokens()
    return _trained(base, raw, ({"input_ids": ids, **more}, {"input_ids": ids, **more}))


def bert() -> Models:
    settings = {**language.COMMON, **DROPS, "num_hidden_layers": 2, "type_vocab_size": language.TYPES}
    hf, nlp = language._hf(), language._nlp()
    return _words(hf.BertModel(hf.BertConfig(**settings, **language.EAGER)), nlp.BertModel(nlp.BertConfig(**settings)))


def bert_sdpa() -> Models:
    settings = {**language.COMMON, **DROPS, "num_hidden_layers": 2, "type_vocab_size": language.TYPES}
    hf = language._hf()
    base = hf.BertModel(hf.BertConfig(**settings, **language.EAGER))
    return _words(base, hf.BertModel(hf.BertConfig(**settings, attn_implementation="sdpa")))


def gpt2(attention: float = 0.1) -> Models:
    """paddlenlp drops what attention returns as often as attention's weights: equal only where both are the same."""
    hf, nlp = language._hf(), language._nlp()
    sizes = {"vocab_size": language.VOCABULARY, "n_embd": language.HIDDEN, "n_layer": 2, "n_head": language.HEADS}
    sizes |= {"n_inner": language.INNER, "n_positions": language.POSITIONS}
    drops = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": attention}
    settings = language.COMMON | {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": attention}
    base = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **drops, use_cache=False, **language.EAGER))
    return _words(base, nlp.GPTForCausalLM(nlp.GPTConfig(**settings, num_hidden_layers=2)))


def t5() -> Models:
    hf, nlp = language._hf(), language._nlp()
    sizes = {"vocab_size": language.VOCABULARY, "d_model": language.HIDDEN, "d_kv": 10, "d_ff": language.INNER}
    sizes |= {"num_heads": language.HEADS, "num_layers": 2, "num_decoder_layers": 2, "dropout_rate": 0.1}
    base = hf.T5Model(hf.T5Config(**sizes, **language.EAGER, use_cache=False))
    raw = nlp.T5Model(nlp.T5Config(**sizes, use_cache=False))
    return _words(base, raw, decoder_input_ids=language.tokens(2, 7))


def _vit(library: str) -> Any:
    v = vision._VIT
    sizes = {"img_size": v["image"], "patch_size": v["patch"], "embed_dim": v["width"], "depth": 3}
    sizes |= {"num_heads": v["heads"], "mlp_ratio": v["inner"] / v["width"]}
    if library == "timm":
        drops = {"pos_drop_rate": 0.1, "proj_drop_rate": 0.1, "attn_drop_rate": 0.2, "drop_path_rate": 0.5}
        return vision._timm().models.vision_transformer.VisionTransformer(
            **sizes, **drops, num_classes=vision.CLASSES, class_token=True
        )
    drops = {"drop_rate": 0.1, "attn_drop_rate": 0.2, "drop_path_rate": 0.5}
    made = vision._ppcls("model_zoo.vision_transformer").VisionTransformer
    return made(**sizes, **drops, class_num=vision.CLASSES, qkv_bias=True, epsilon=1e-6)


def vit() -> Models:
    return _trained(_vit("timm"), _vit("ppcls"), vision.images(vision._VIT["image"], 4))


def _swin(library: str) -> Any:
    s = vision._SWIN
    sizes = {"img_size": 64, "patch_size": s["patch"], "window_size": s["window"], "embed_dim": s["width"]}
    sizes |= {"depths": [2, 2], "num_heads": [2, 4], "drop_path_rate": 0.5, "attn_drop_rate": 0.2}
    if library == "timm":
        made = vision._timm().models.swin_transformer.SwinTransformer
        return made(**sizes, num_classes=vision.CLASSES)
    made = vision._ppcls("legendary_models.swin_transformer").SwinTransformer
    return made(**sizes, class_num=vision.CLASSES)


def swin() -> Models:
    return _trained(_swin("timm"), _swin("ppcls"), vision.images(64, 4))


TRAINED: dict[str, tuple[Callable[[], Models], tuple[str, ...]]] = {
    "bert: transformers, paddlenlp": (bert, ("transformers", "paddlenlp")),
    "bert: transformers, with another attention": (bert_sdpa, ("transformers",)),
    "gpt2: transformers, paddlenlp": (gpt2, ("transformers", "paddlenlp")),
    "t5: transformers, paddlenlp": (t5, ("transformers", "paddlenlp")),
    "vit: timm, ppcls": (vit, ("timm", "ppcls")),
    "swin: timm, ppcls": (swin, ("timm", "ppcls")),
}
"""Name to how the pair is built, and what it needs besides torch and paddle."""
