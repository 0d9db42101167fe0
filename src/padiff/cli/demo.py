"""``padiff demo``: finds a planted mistake, then shows the mended port aligned."""

from __future__ import annotations

import argparse
from typing import Any

from padiff.frameworks import adapter_named


def add(commands: Any) -> None:
    parser = commands.add_parser("demo", help="find a planted mistake in a paddle port of a torch model")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    for name in ("torch", "paddle"):
        adapter_named(name)  # says what to install where one is missing
    from padiff.demo.show import show

    return 0 if show() else 1
