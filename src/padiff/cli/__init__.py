"""The command ``padiff``: one file per subcommand."""

from padiff.cli.main import main as main
