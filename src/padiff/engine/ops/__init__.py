"""Ops of modules' own code, held beside base's where that is asked for."""
