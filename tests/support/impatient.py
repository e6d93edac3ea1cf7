"""The console script, where ranks wait one second for word of a rank that is gone."""

import sys

from embodied_rl.cli.main import main
from embodied_rl.runtime.ranks import launch as ranks

if __name__ == "__main__":
    ranks.GRACE = 1.0
    sys.exit(main())
