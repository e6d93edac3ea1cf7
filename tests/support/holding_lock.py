"""Holds the lock of a run folder until it is killed; its child lives longer: for tests/runs/test_lock.py."""

import subprocess
import sys
from pathlib import Path

from embodied_rl.runs.lock import hold_run


def main(folder: str) -> None:
    with hold_run(Path(folder)):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=sys.stdin)
        print(child.pid, flush=True)
        child.wait()


if __name__ == "__main__":
    main(sys.argv[1])
