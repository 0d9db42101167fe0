"""Loading the libraries the zoo takes its models from: each needs some care, all of it is here.

Which are installed decides which pairs run; `make zoo` installs them all.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OWN_FOLDERS = Path(os.environ.get("PADIFF_ZOO", ROOT / ".zoo"))
"""Holds libraries that share names with others and so have folders of their own: `paddlenlp` and `paddleclas`."""

_HELD: list[Any] = []


def missing(name: str) -> str:
    """Why a library is not there, or "" when it is."""
    try:
        load(name)
    except ImportError as error:
        return f"{name} is not installed ({error}); `make zoo` installs it"
    return ""


@functools.cache
def load(name: str) -> ModuleType:
    """The library, imported in the way that works."""
    # Installed or not is told before anything is imported: a half-imported library leaves much behind.
    folders = [str(OWN_FOLDERS / "paddleclas" / "paddleclas"), str(OWN_FOLDERS / "paddleclas")]
    if name == "ppcls":
        return _from_folders(name, folders)
    if name == "paddlenlp":
        _transformers_first()
        return _from_folders("paddlenlp.transformers", [str(OWN_FOLDERS / "paddlenlp")])
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"no module named {name!r}")
    if name in ("torchvision", "timm", "transformers"):
        _declare_vision_operators()
    if name == "paddleformers":
        _transformers_first()
    return importlib.import_module(name)


def _declare_vision_operators() -> None:
    """torchvision's wheel is linked to CUDA; with the operators declared its Python code loads without the rest."""
    if _HELD or importlib.util.find_spec("torchvision") is None:
        return
    torch = importlib.import_module("torch")
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _HELD.append(library)


def _transformers_first() -> None:
    """paddleformers and paddlenlp hide torch from transformers: its classes must be there before."""
    transformers = load("transformers")
    for name in TRANSFORMERS_CLASSES:
        getattr(transformers, name)


def _from_folders(name: str, folders: list[str]) -> ModuleType:
    if not all(Path(folder).is_dir() for folder in folders):
        raise ImportError(f"no folder for {name!r}")
    _forget_shared()
    sys.path[:0] = folders
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = [folder for folder in sys.path if folder not in folders]
        _forget_shared()


def _forget_shared() -> None:
    """Each library with a folder of its own brings its own version of what others have too."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "aistudio_sdk":
            del sys.modules[name]


TRANSFORMERS_CLASSES = (
    "AlbertModel",
    "BartModel",
    "BertForMaskedLM",
    "BertModel",
    "BloomModel",
    "CLIPModel",
    "CodeGenForCausalLM",
    "ConvNextForImageClassification",
    "DebertaModel",
    "ElectraModel",
    "ErnieModel",
    "FunnelModel",
    "GemmaForCausalLM",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "MambaModel",
    "MistralForCausalLM",
    "MPNetModel",
    "OPTForCausalLM",
    "OPTModel",
    "Phi3ForCausalLM",
    "ResNetForImageClassification",
    "RobertaModel",
    "SwinForImageClassification",
    "T5Model",
    "T5ForConditionalGeneration",
    "ViTForImageClassification",
    "XLNetModel",
)
"""What the pairs use of transformers."""
