"""Reads the command line and hands over; an error is one message, never a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import padiff
from padiff.cli import compare, demo, show
from padiff.errors import PadiffError

COMMANDS = (compare, show, demo)
COULD_NOT_TELL = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 aligned, 1 diverged, 2 could not tell."""
    # torch's and paddle's thread pools spin against each other unless told not to, before they load.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    parser = argparse.ArgumentParser(
        prog="padiff", description="Says whether two models compute the same, and if not, where they first part."
    )
    parser.add_argument("--version", action="version", version=f"padiff {padiff.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(argv)
    try:
        code: int = options.run(options)
    except PadiffError as error:
        return _told(str(error))
    except BrokenPipeError:  # whoever read what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT_TELL
    except OSError as error:
        return _told(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt:
        return _told("interrupted")
    return code


def _told(message: str) -> int:
    sys.stderr.write(f"padiff: {message}\n")
    return COULD_NOT_TELL
