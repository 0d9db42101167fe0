"""One outcome, several renderings."""
