"""``python -m padiff`` is the command ``padiff``."""

import sys

from padiff.cli import main

sys.exit(main())
