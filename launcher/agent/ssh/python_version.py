"""The first text that a login's Python runs: one that is too old for the agent reports that, and exits.

Any Python since 2.7 can read this file; the text that follows it (`first.py`) needs 3.9.
"""

import json
import sys

_OLDEST = (3, 9)

if tuple(sys.version_info) < _OLDEST:
    _versions = "%d.%d, and %d.%d" % (tuple(sys.version_info[:2]) + _OLDEST)  # noqa: UP031 - Python 2.7
    _answer = {"problem": sys.executable + " is Python " + _versions + " or newer is needed"}
    sys.stdout.write("\n" + sys.argv[1] + json.dumps(_answer) + "\n")
    sys.stdout.flush()
    sys.exit(0)
