"""``python -m brainlib``: the command ``brainlib`` where its script is not on the path."""

import sys

from brainlib.cli import main

if __name__ == "__main__":
    sys.exit(main())
