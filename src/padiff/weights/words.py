"""What a path says: its words, the many names for one thing brought to one, and its numbers."""

from __future__ import annotations

import functools
import re

SYNONYMS = {
    "attention": "attn selfattn selfattention mha multiheadattn multiheadattention crossattention mixer",
    "cross": "encdec encoderattn crossattn encdecattention multihead",
    "query": "q wq qlin toq qproj queries queryproj linearq",
    "key": "k wk klin tok kproj keys keyproj lineark",
    "value": "v wv vlin tov vproj values valueproj linearv",
    "qkv": "qkvproj querykeyvalue cattn inproj wqkv qkvw",
    "out": "o wo oproj outproj outlin proj toout cproj",
    "norm": "ln layernorm rmsnorm batchnorm bn norms layernorms groupnorm norml",
    "fc1": "linear1 lin1 densehto4h cfc wi intermediate up upproj w3 mlpfc1",
    "fc2": "linear2 lin2 dense4htoh down downproj w2 mlpfc2",
    "gate": "gateproj w1",
    "gateup": "gateupproj upgate gateupfusedproj",
    "embed": "embeddings embedding emb embeds wte",
    "word": "token tokens words inputs",
    "position": "pos positional positions wpe positionembedding posembed posembedding",
    "type": "segment tokentype",
    "cls": "class clstoken classtoken",
    "head": "classifier lmhead fc score decoderhead output_layer",
    "layer": "layers blocks block h stages stage resblocks",
    "downsample": "downsampling shortcut",
    "conv": "convolution conv2d",
    "mlp": "ffn feedforward ff",
    "weight": "gamma g scale kernel w",
    "bias": "beta b offset",
    "expert": "experts",
    "router": "gateweight",
    "patch": "patches patchembed patchembedding patchembeddings",
}
_PLACES = {"before": "1", "after": "2", "first": "1", "second": "2"}
"""Words that number: a layernorm_before is a norm1."""
_TO_ONE = {other: one for one, others in SYNONYMS.items() for other in others.split()}
_EMPTY = frozenset({"", "model", "module", "self", "self_attn", "backbone", "base", "transformer", "net"})


def canonical(word: str) -> str:
    """The common form of a word that has one, else ""."""
    return _TO_ONE.get(word, word if word in SYNONYMS else "")


def synonyms_of(word: str) -> list[str]:
    return SYNONYMS.get(word, "").split()


@functools.lru_cache(maxsize=65536)
def words_of(path: str) -> tuple[str, ...]:
    """Words of a dotted path from the outside in, each brought to its common form."""
    found: list[str] = []
    for component in path.split("."):
        found += _words_of_component(component)
    return tuple(found)


def _words_of_component(component: str) -> list[str]:
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", component).lower()
    if text.isdigit():
        return []
    joined = re.sub(r"[^a-z0-9]", "", text)
    if joined in _TO_ONE or joined in SYNONYMS:
        return [_TO_ONE.get(joined, joined)]
    for place, number in _PLACES.items():
        text = re.sub(rf"[^a-z0-9]+{place}$", number, text)
    words: list[str] = []
    for word in re.split(r"[^a-z0-9]+", re.sub(r"[^a-z0-9]+(?=\d+$)", "", text)):  # ln_1 is ln1
        if word in _TO_ONE or word in SYNONYMS:
            words.append(_TO_ONE.get(word, word))
            continue
        stem = word.rstrip("0123456789")
        known = _TO_ONE.get(stem, stem)
        if known and known not in _EMPTY:
            words.append(known)
            if stem != word:
                words.append(known + word[len(stem) :])
    return words


@functools.lru_cache(maxsize=65536)
def numbers_of(path: str) -> tuple[int, ...]:
    """The components that are numbers: positions in lists."""
    return tuple(int(component) for component in path.split(".") if component.isdigit())


def likeness(base: str, raw: str) -> float:
    """How much two paths say the same, from 0 to 1; the last words count most."""
    return _likeness(words_of(base), words_of(raw))


@functools.lru_cache(maxsize=262144)
def _likeness(one: tuple[str, ...], two: tuple[str, ...]) -> float:
    if not one or not two:
        return 0.0
    weights_one, weights_two = _weights(one), _weights(two)
    # Not over a set: its order changes from process to process, and so would the last digit, which decides ties.
    shared = sum(min(weight, weights_two[word]) for word, weight in weights_one.items() if word in weights_two)
    return 2 * shared / (sum(weights_one.values()) + sum(weights_two.values()))


def _weights(words: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for place, word in enumerate(reversed(words)):
        found[word] = max(found.get(word, 0.0), 1.0 / (1 + place))
    return found
