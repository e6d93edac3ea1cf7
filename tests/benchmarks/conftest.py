"""Benchmarks of policies are held against the sizes in tests/parity, whose scripts import them by their names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))
