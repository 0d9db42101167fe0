"""What padiff raises: a fact, and what to try."""

from __future__ import annotations


class PadiffError(Exception):
    """Base of everything padiff raises; ``hint`` says what to try."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.message = message
        self.hint = hint


class ArgumentError(PadiffError, ValueError):
    """An argument of a call is wrong: which one, what came, what was expected."""


class UnknownFrameworkError(PadiffError, TypeError):
    """An object belongs to no framework padiff knows, or to one that is not installed."""


class WeightError(PadiffError):
    """Base's weights cannot be put into raw."""


class DumpError(PadiffError):
    """A dump cannot be written or read: missing, damaged, foreign, of a newer schema, or no room for it."""


class ReportError(PadiffError, ValueError):
    """A saved report cannot be read: missing, damaged, foreign, or of a newer schema."""


class NotAvailableError(PadiffError, NotImplementedError):
    """A documented capability that this version does not have yet."""
