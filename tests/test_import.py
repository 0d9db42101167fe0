"""``import padiff`` is quick, brings in no framework and changes nothing. Each proof needs a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

HEAVY = {"torch", "paddle", "jax", "pandas"}
SECONDS = 0.15
TRIES = 7


def run(code: str) -> Any:
    """Run ``code`` in a fresh interpreter in the current folder; what it prints is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_brings_in_no_framework() -> None:
    loaded = run("""
        import json, sys
        import padiff
        print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
    """)
    assert "padiff" in loaded
    assert not HEAVY & set(loaded)


def test_is_quick() -> None:
    # The best of several: a busy machine only ever adds time.
    seconds = [
        run("""
            import time
            start = time.perf_counter()
            import padiff
            print(time.perf_counter() - start)
        """)
        for _ in range(TRIES)
    ]
    assert min(seconds) < SECONDS, f"import padiff took {min(seconds):.3f} s at best, allowed {SECONDS} s"


def test_changes_nothing() -> None:
    # numpy comes first: it has filters and options of its own, which are not padiff's doing.
    changed = run("""
        import builtins, json, os, sys, warnings
        import numpy

        def state():
            return {
                "numpy print options": numpy.get_printoptions(),
                "numpy error handling": numpy.geterr(),
                "sys.meta_path": list(sys.meta_path),
                "sys.path_hooks": list(sys.path_hooks),
                "builtins.__import__": builtins.__import__,
                "os.environ": dict(os.environ),
                "warnings.filters": list(warnings.filters),
                "sys.excepthook": sys.excepthook,
            }

        before = state()
        import padiff
        after = state()
        print(json.dumps([name for name in before if before[name] != after[name]]))
    """)
    assert changed == []


def test_leaves_no_files(own_folder: Path) -> None:
    run("import padiff; print('null')")
    assert list(own_folder.iterdir()) == []


def test_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", "import padiff"], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
