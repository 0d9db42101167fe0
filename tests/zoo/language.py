"""Language models: transformers against paddlenlp and paddleformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.zoo import libraries
from tests.zoo.convert import MATRICES, Converter, chained, renaming, reshaped, split
from tests.zoo.prepare import randomised, seeded

Models = tuple[Any, Any, Any]

VOCABULARY, HIDDEN, HEADS, INNER, POSITIONS, TYPES = 97, 48, 4, 80, 33, 3
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
}
EAGER = {"attn_implementation": "eager"}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def depth(small: bool) -> int:
    return 2 if small else 12


def tokens(rows: int = 2, length: int = 11) -> np.ndarray:
    return seeded().integers(3, VOCABULARY - 4, size=(rows, length))


def _hf() -> Any:
    return libraries.load("transformers")


def _nlp() -> Any:
    return libraries.load("paddlenlp")


def _both(base: Any, raw: Any, **more: Any) -> Models:
    ids = tokens()
    randomised(base)
    raw.eval()
    return base, raw, ({"input_ids": ids, **more}, {"input_ids": ids, **more})


# ------------------------------------------------------------------ BERT and its kin

_ENCODER = (
    (r"LayerNorm", "layer_norm"),
    (r"encoder\.layer\.", "encoder.layers."),
    (r"attention\.self\.(q|k|v)[a-z]+\.", r"self_attn.\1_proj."),
    (r"attention\.output\.dense", "self_attn.out_proj"),
    (r"attention\.output\.layer_norm", "norm1"),
    (r"intermediate\.dense", "linear1"),
    (r"(layers\.\d+)\.output\.dense", r"\1.linear2"),
    (r"(layers\.\d+)\.output\.layer_norm", r"\1.norm2"),
)
ENCODER: Converter = renaming(*_ENCODER, turned=MATRICES + r"|.*embeddings_project\.weight")


def bert(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES}
    base = _hf().BertModel(_hf().BertConfig(**settings, **EAGER))
    return _both(base, _nlp().BertModel(_nlp().BertConfig(**settings)))


def bert_masked(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES}
    base = _hf().BertForMaskedLM(_hf().BertConfig(**settings, **EAGER))
    return _both(base, _nlp().BertForMaskedLM(_nlp().BertConfig(**settings)))


BERT_MASKED = chained(
    renaming(
        *_ENCODER,
        (r"predictions\.transform\.dense", "predictions.transform"),
        (r"predictions\.transform\.layer_norm", "predictions.layer_norm"),
        dropped=r"cls\.predictions\.bias",
        turned=r"(?!.*(embed|decoder\.weight)).*weight",
    ),
    lambda state: {**state, "cls.predictions.decoder_bias": state["cls.predictions.decoder.bias"]},
)


def ernie(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES}
    settings |= {"use_task_id": True, "task_type_vocab_size": 5}
    base = _hf().ErnieModel(_hf().ErnieConfig(**settings, **EAGER))
    return _both(base, _nlp().ErnieModel(_nlp().ErnieConfig(**settings)))


def roberta(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES, "pad_token_id": 1}
    base = _hf().RobertaModel(_hf().RobertaConfig(**settings, **EAGER, layer_norm_eps=1e-12))
    ids = tokens()
    places = np.broadcast_to(np.arange(2, 2 + ids.shape[1]), ids.shape).copy()
    return _both(base, _nlp().RobertaModel(_nlp().RobertaConfig(**settings)), position_ids=places)


def electra(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES}
    settings |= {"embedding_size": 40}
    base = _hf().ElectraModel(_hf().ElectraConfig(**settings, **EAGER))
    return _both(base, _nlp().ElectraModel(_nlp().ElectraConfig(**settings)))


def albert(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "type_vocab_size": TYPES}
    settings |= {"embedding_size": 40, "num_hidden_groups": 2, "hidden_act": "gelu"}
    base = _hf().AlbertModel(_hf().AlbertConfig(**settings, **EAGER))
    return _both(base, _nlp().AlbertModel(_nlp().AlbertConfig(**settings)))


ALBERT = renaming((r"LayerNorm", "layer_norm"), turned=r"(?!.*embeddings\.).*weight")


def mpnet(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "pad_token_id": 1, "layer_norm_eps": 1e-5}
    base = _hf().MPNetModel(_hf().MPNetConfig(**settings, **EAGER))
    mask = np.ones((2, 11), dtype="int64")
    mask[0, -3:] = 0
    return _both(base, _nlp().MPNetModel(_nlp().MPNetConfig(**settings)), attention_mask=mask)


MPNET = renaming(
    (r"LayerNorm", "layer_norm"),
    (r"attention\.attn\.", "attention."),
    (r"intermediate\.dense", "ffn"),
    (r"(layer\.\d+)\.output\.dense", r"\1.ffn_output"),
    (r"(layer\.\d+)\.output\.layer_norm", r"\1.layer_norm"),
    turned=r".*(attention\.[qkvo]|ffn|ffn_output|pooler\.dense)\.weight",
)


def deberta(small: bool) -> Models:
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small), "max_relative_positions": 16}
    settings |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
    base = _hf().DebertaModel(_hf().DebertaConfig(**settings))
    return _both(base, _nlp().DebertaModel(_nlp().DebertaConfig(**settings, output_hidden_states=False)))


DEBERTA = renaming(turned=r".*(proj|dense)\.weight")


def funnel(small: bool) -> Models:
    settings = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_head": HEADS, "d_head": 12, "d_inner": INNER}
    settings |= {"block_sizes": [depth(small) // 2] * 2, "num_decoder_layers": 1, "max_position_embeddings": POSITIONS}
    settings |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    base = _hf().FunnelModel(_hf().FunnelConfig(**settings))
    base, raw, inputs = _both(base, _nlp().FunnelModel(_nlp().FunnelConfig(**settings)))
    return base, raw, (inputs[0], {**inputs[1], "return_dict": True})


FUNNEL = renaming(turned=r".*(linear_[12]|[qkv]_head|post_proj)\.weight")


# ------------------------------------------------------------------ decoders


def gpt2(small: bool) -> Models:
    base = _hf().GPT2LMHeadModel(
        _hf().GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=HIDDEN,
            n_layer=depth(small),
            n_head=HEADS,
            n_inner=INNER,
            n_positions=POSITIONS,
            use_cache=False,
            **EAGER,
        )
    )
    settings = {**COMMON, **NO_DROPOUT, "num_hidden_layers": depth(small)}
    return _both(base, _nlp().GPTForCausalLM(_nlp().GPTConfig(**settings)))


GPT2 = chained(
    split(
        r"(.*)attn\.c_attn\.(weight|bias)",
        *(rf"\1self_attn.{part}_proj.\2" for part in "qkv"),
        axis=1,
    ),
    renaming(
        (r"transformer\.wte", "gpt.embeddings.word_embeddings"),
        (r"transformer\.wpe", "gpt.embeddings.position_embeddings"),
        (r"transformer\.h\.", "gpt.decoder.layers."),
        (r"transformer\.ln_f", "gpt.decoder.norm"),
        (r"\.attn\.c_proj", ".self_attn.out_proj"),
        (r"mlp\.c_fc", "linear1"),
        (r"mlp\.c_proj", "linear2"),
        (r"\.ln_(\d)", r".norm\1"),
    ),
)


def opt(small: bool) -> Models:
    hf, nlp = _hf(), _nlp()
    settings = {**COMMON, "num_hidden_layers": depth(small), "word_embed_proj_dim": 40}
    settings.pop("intermediate_size")
    base = hf.OPTModel(hf.OPTConfig(**settings, **EAGER, ffn_dim=INNER, dropout=0.0, use_cache=False))
    raw = nlp.OPTModel(nlp.OPTConfig(**settings, **NO_DROPOUT, intermediate_size=INNER))
    return _both(base, raw)


OPT = renaming(
    (r"decoder\.embed_tokens", "embeddings.word_embeddings"),
    (r"decoder\.embed_positions", "embeddings.position_embeddings"),
    (r"decoder\.project_in", "embeddings.project_in"),
    (r"\.fc(\d)", r".linear\1"),
    (r"self_attn_layer_norm", "norm1"),
    (r"(layers\.\d+)\.final_layer_norm", r"\1.norm2"),
    turned=r"(?!.*_embeddings).*weight",
)


def bloom(small: bool) -> Models:
    hf, nlp = _hf(), _nlp()
    settings = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": depth(small), "n_head": HEADS}
    base = hf.BloomModel(hf.BloomConfig(**settings, **EAGER, use_cache=False))
    return _both(base, nlp.BloomModel(nlp.BloomConfig(**settings)))


BLOOM = renaming(turned=MATRICES)


def mistral(small: bool) -> Models:
    settings = {**COMMON, "num_hidden_layers": depth(small), "num_key_value_heads": 2, "sliding_window": None}
    base = _hf().MistralForCausalLM(_hf().MistralConfig(**settings, **EAGER, use_cache=False))
    raw = _nlp().MistralForCausalLM(_nlp().MistralConfig(**settings, use_cache=False))
    return _both(base, raw)


MISTRAL = renaming((r"^model\.", "mistral."), turned=MATRICES)


def gemma(small: bool) -> Models:
    settings = {**COMMON, "num_hidden_layers": depth(small), "num_key_value_heads": 2, "head_dim": 14}
    settings |= {"hidden_act": "gelu", "pad_token_id": 0}  # paddlenlp takes the exact one, whatever is asked for
    base = _hf().GemmaForCausalLM(_hf().GemmaConfig(**settings, **EAGER, use_cache=False))
    raw = _nlp().GemmaForCausalLM(_nlp().GemmaConfig(**settings, use_cache=False))
    return _both(base, raw)


GEMMA = renaming((r"^model\.", "gemma."), turned=r"(?!.*(embed|lm_head)).*weight")


def llama(small: bool) -> Models:
    settings = {**COMMON, "num_hidden_layers": depth(small), "num_key_value_heads": 2, "use_cache": False}
    base = _hf().LlamaForCausalLM(_hf().LlamaConfig(**settings, **EAGER))
    libraries.load("paddleformers")
    from paddleformers.transformers import LlamaConfig
    from paddleformers.transformers.llama.modeling import LlamaForCausalLM

    raw = LlamaForCausalLM(LlamaConfig(**settings, fuse_rms_norm=False, tie_word_embeddings=False))
    return _both(base, raw)


LLAMA = renaming(turned=r"(?!.*(embed|lm_head)).*weight")


def phi3(small: bool) -> Models:
    settings = {**COMMON, "num_hidden_layers": depth(small), "num_key_value_heads": 2, "use_cache": False}
    settings |= {"pad_token_id": 0, "resid_pdrop": 0.0, "tie_word_embeddings": False}
    base = _hf().Phi3ForCausalLM(_hf().Phi3Config(**settings, **EAGER))
    libraries.load("paddleformers")
    from paddleformers.transformers import Phi3Config
    from paddleformers.transformers.phi3.modeling import Phi3ForCausalLM

    raw = Phi3ForCausalLM(Phi3Config(**settings, fuse_rms_norm=False))
    return _both(base, raw)


def codegen(small: bool) -> Models:
    settings = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": depth(small), "n_head": HEADS, "rotary_dim": 8}
    settings |= {"n_ctx": POSITIONS, "n_positions": POSITIONS, "tie_word_embeddings": False}
    base = _hf().CodeGenForCausalLM(_hf().CodeGenConfig(**settings, **EAGER, use_cache=False))
    return _both(base, _nlp().CodeGenForCausalLM(_nlp().CodeGenConfig(**settings)))


CODEGEN = renaming(turned=r".*(proj|fc_in|fc_out|lm_head)\.weight")


def mamba(small: bool) -> Models:
    settings = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "state_size": 6, "num_hidden_layers": depth(small)}
    base = _hf().MambaModel(_hf().MambaConfig(**settings, use_cache=False))
    return _both(base, _nlp().MambaModel(_nlp().MambaConfig(**settings, use_cache=False)))


MAMBA = renaming(turned=r".*proj\.weight")


# ------------------------------------------------------------------ encoder and decoder


def t5(small: bool) -> Models:
    settings = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 10, "d_ff": INNER, "num_heads": HEADS}
    settings |= {"num_layers": depth(small), "num_decoder_layers": depth(small), "dropout_rate": 0.0}
    base = _hf().T5Model(_hf().T5Config(**settings, **EAGER, use_cache=False))
    raw = _nlp().T5Model(_nlp().T5Config(**settings, use_cache=False))
    return _both(base, raw, decoder_input_ids=tokens(2, 7))


T5 = renaming(turned=MATRICES)


def bart(small: bool) -> Models:
    hf, nlp = _hf(), _nlp()
    settings = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "max_position_embeddings": POSITIONS}
    settings |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS}
    settings |= {"encoder_ffn_dim": INNER, "decoder_ffn_dim": 72, "dropout": 0.0}
    layers = depth(small)
    base = hf.BartModel(
        hf.BartConfig(**settings, **EAGER, encoder_layers=layers, decoder_layers=layers, use_cache=False)
    )
    raw = nlp.BartModel(nlp.BartConfig(**settings, encoder_layers=layers, decoder_layers=layers))
    return _both(base, raw, decoder_input_ids=tokens(2, 7))


BART = renaming(
    (r"^(encoder|decoder)\.(embed_positions|layernorm_embedding)", r"\1.\1_\2"),
    (r"^(encoder|decoder)\.layers", r"\1.\1.layers"),
    (r"\.fc(\d)", r".linear\1"),
    (r"self_attn_layer_norm", "norm1"),
    (r"encoder_attn_layer_norm", "norm2"),
    (r"encoder_attn", "cross_attn"),
    (r"(decoder\.layers\.\d+)\.final_layer_norm", r"\1.norm3"),
    (r"(encoder\.layers\.\d+)\.final_layer_norm", r"\1.norm2"),
    turned=r"(?!.*(embed|shared)).*weight",
)


# ------------------------------------------------------------------ others


def xlnet(small: bool) -> Models:
    settings = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layer": depth(small), "n_head": HEADS, "d_inner": INNER}
    base = _hf().XLNetModel(_hf().XLNetConfig(**settings, dropout=0.0))
    raw = _nlp().XLNetModel(_nlp().XLNetConfig(**settings, dropout=0.0))
    return _both(base, raw)


XLNET = chained(
    reshaped(r".*rel_attn\.[qkvor]", lambda array: array.reshape(array.shape[0], -1)),
    renaming(turned=r".*layer_[12]\.weight"),
)


def clip(small: bool) -> Models:
    layers = depth(small)
    text = {**COMMON, "num_hidden_layers": layers, "projection_dim": 20, "eos_token_id": 96, "hidden_act": "quick_gelu"}
    vision = {
        "hidden_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "intermediate_size": 72,
        "image_size": 32,
        "patch_size": 8,
        "projection_dim": 20,
        "hidden_act": "quick_gelu",
    }
    settings = {"text_config": text, "vision_config": vision, "projection_dim": 20}
    base = _hf().CLIPModel(_hf().CLIPConfig(**settings, **EAGER))
    raw = _nlp().CLIPModel(_nlp().CLIPConfig(**settings))
    ids = tokens()
    ids[:, -1] = 96
    randomised(base)
    raw.eval()
    image = seeded(1).normal(size=(2, 3, 32, 32)).astype("float32")
    inputs = {"input_ids": ids, "pixel_values": image}
    return base, raw, (inputs, dict(inputs))


CLIP = chained(
    renaming(
        (r"text_model\.embeddings\.token_embedding", "text_model.token_embedding"),
        (r"embeddings\.position_embedding", "positional_embedding"),
        (r"embeddings\.class_embedding", "class_embedding"),
        (r"embeddings\.patch_embedding", "conv1"),
        (r"pre_layrnorm", "ln_pre"),
        (r"post_layernorm", "ln_post"),
        (r"text_model\.final_layer_norm", "text_model.ln_final"),
        (r"encoder\.layers", "transformer.layers"),
        (r"mlp\.fc(\d)", r"linear\1"),
        (r"layer_norm(\d)", r"norm\1"),
        (r"visual_projection\.weight", "vision_projection"),
        (r"text_projection\.weight", "text_projection"),
        turned=r"(?!.*embedding).*(weight|projection)",
    ),
    reshaped("logit_scale", lambda array: array.reshape(1)),
)
