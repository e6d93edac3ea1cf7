"""`python -m embodied_rl` does what the console script does."""

import sys

from embodied_rl.cli import main

if __name__ == "__main__":
    sys.exit(main())
