"""A model that somebody else runs: its steps recorded, shaken, written into a dump."""
