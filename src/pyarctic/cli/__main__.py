"""`python -m pyarctic.cli` is the command `arctic`."""

import sys

from pyarctic.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
