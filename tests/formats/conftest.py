"""Tests of formats import what `tests/parity` says of sizes and weights by its names."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "parity"):
    sys.path.insert(0, str(folder))
