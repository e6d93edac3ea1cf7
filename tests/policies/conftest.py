"""Tests of policies import `recipe` and the sizes in tests/parity by their names, as the other project's scripts do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
