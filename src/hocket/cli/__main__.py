"""`python -m hocket.cli`, for machines where the `hocket` script is not on the path."""

import sys

from hocket.cli import main

if __name__ == "__main__":
    sys.exit(main.main())
