"""An interrupt that Python ignores, because it came while a finaliser ran, still ends the work."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.process]
PROGRAM = """
import signal, time
from embodied_rl.system.signals import reraise_ignored_exceptions

class Finalised:
    def __del__(self):
        raise KeyboardInterrupt  # what a handler raises while this runs

try:
    with reraise_ignored_exceptions(KeyboardInterrupt, signal.SIGINT):
        Finalised()
        for _ in range({steps}):
            time.sleep(0.01)
        print("ran to its end")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(("steps", "said"), [(10_000, "interrupted\n"), (0, "ran to its end\ninterrupted\n")])
def test_an_ignored_interrupt_is_raised_again(steps: int, said: str) -> None:
    """While the work goes on; or at its end, if that comes first."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(steps=steps)], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout, done.returncode) == (said, 0), done.stderr
