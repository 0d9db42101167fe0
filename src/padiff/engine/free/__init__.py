"""Both models as they run by themselves, raw held beside base, and how far rounding alone moves what they compute."""
