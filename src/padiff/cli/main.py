"""Reads the command line and hands over; an error is one message, never a traceback."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import padiff
from padiff.cli.console import hush
from padiff.errors import PadiffError

COULD_NOT_TELL = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 aligned, 1 diverged, 2 could not tell."""
    # torch's and paddle's thread pools spin against each other unless told not to, before they load.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    for name in ("stdout", "stderr"):  # closed by who started the command: the exit code still tells
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        return _run(argv)
    except PadiffError as error:
        return _told(str(error))
    except BrokenPipeError:  # whoever read what is printed has seen enough
        hush()
        return COULD_NOT_TELL
    except OSError as error:
        return _told(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt:
        return _told("interrupted")
    except MemoryError:
        return _told("there is not enough memory\nhint: dumps need not fit into it, but their largest tensors must")
    except Exception as error:  # no verdict, and no exit code that would be read as one
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return _told(f"this should not have happened: {said} ({place.filename}:{place.lineno})")


def _run(argv: Sequence[str] | None) -> int:
    from padiff.cli import compare, demo, show  # what goes wrong when these load is told like the rest

    parser = argparse.ArgumentParser(
        prog="padiff", description="Says whether two models compute the same, and if not, where they first part."
    )
    parser.add_argument("--version", action="version", version=f"padiff {padiff.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in (compare, show, demo):
        command.add(commands)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


def _told(message: str) -> int:
    sys.stderr.write(f"padiff: {message}\n")
    return COULD_NOT_TELL
