"""A decoder on a GPU against itself: ``python -m benchmarks.device``, where torch, transformers and a GPU are at hand.

In its own right, and not among the others: it needs no paddle, which machines with a GPU may not have.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import padiff

SIZES = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16}
BATCH, LENGTH, VOCABULARY = 4, 1024, 32_000
ROUNDS = 3


def main() -> None:
    base, raw = decoder(0), decoder(1)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device="cuda")
    inputs = ({"input_ids": ids}, {"input_ids": ids})

    def plain() -> None:
        for model in (base, raw):
            model(input_ids=ids).logits.float().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None

    def auto_diff() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            if not padiff.auto_diff(base, raw, inputs, atol=1e-2, rtol=1e-2):
                raise AssertionError("the pair does not agree")

    def compare() -> None:
        result = padiff.compare(base, raw, inputs)
        if not result.aligned:
            raise AssertionError(str(result))

    seconds, memory = cost(plain)
    parameters = sum(one.numel() for one in base.parameters())
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {parameters / 1e9:.2f} billion bfloat16 parameters"
    )
    print(f"plain      {seconds * 1e3:7.0f} ms  {memory:6.1f} GiB")
    for run in (auto_diff, compare):
        own, held = cost(run)
        ratios = f"time {own / seconds:.2f}, memory {held / memory:.2f}"
        print(f"{run.__name__:10} {own * 1e3:7.0f} ms  {held:6.1f} GiB  {ratios}")


def decoder(seed: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_key_value_heads=SIZES["num_attention_heads"], use_cache=False, **SIZES
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def cost(run: Callable[[], None]) -> tuple[float, float]:
    """The best of some rounds in seconds, and the peak of the device's memory in GiB."""
    run()
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best, torch.cuda.max_memory_allocated() / 2**30


if __name__ == "__main__":
    main()
