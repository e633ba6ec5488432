"""``python -m iodaemon.cli`` is ``iod``."""

import sys

from iodaemon.cli import main

sys.exit(main())
