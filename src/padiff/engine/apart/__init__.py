"""Models that ran apart: two dumps compared, or raw run along base's dump."""
