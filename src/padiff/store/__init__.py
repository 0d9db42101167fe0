"""Traces on disk: comes with dumps."""
