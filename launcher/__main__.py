"""`python -m launcher`: the same as `distlaunch`."""

import sys

from launcher.cli import main

sys.exit(main())
