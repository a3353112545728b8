"""``python -m specpack``: the same as the command ``specpack``."""

import sys

from specpack.cli import main

sys.exit(main())
