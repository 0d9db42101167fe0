"""Composes the stages into one run: both models, step by step, compared as they go."""
