"""`python -m corral`."""

import sys

from corral.main import main

if __name__ == "__main__":
    sys.exit(main())
