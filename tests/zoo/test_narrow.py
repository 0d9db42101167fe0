"""Two libraries' models of which one is held in a narrower dtype: what differs is explained by that, and nothing else
is."""

from __future__ import annotations

import pytest
from benchmarks.clean.run import compared
from benchmarks.clean.variants import VARIANTS
from benchmarks.localise.counted import ALIGNED
from benchmarks.localise.sources import sources

from tests.zoo import libraries

for library in ("torchvision", "timm", "transformers"):
    if reason := libraries.missing(library):
        pytest.skip(reason, allow_module_level=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "pair",
    [
        "swin: torchvision, timm, small",
        "swin: timm, transformers, small",
        "convnext: timm, transformers, small",
        "convnext: torchvision, timm, small",
        "resnet50: transformers, timm",
        "vit: timm, transformers, small",
    ],
)
def test_raw_is_held_in_a_narrower_dtype(pair: str, dtype: str) -> None:
    (source,) = sources([pair])
    (variant,) = (one for one in VARIANTS if one.name == f"raw in {dtype}")
    found = compared(source, variant, 62002)
    assert found.ended == "aligned", found.said
    assert sum(found.runs) <= sum(ALIGNED) + 1e-9
