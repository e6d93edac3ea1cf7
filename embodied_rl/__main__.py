"""`python -m embodied_rl` does what the console script does."""

import sys

from embodied_rl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
