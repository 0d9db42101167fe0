"""Bugs planted in one model of a pair, and whether ``padiff.compare`` names the place and the cause."""
