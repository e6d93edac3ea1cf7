"""Run a command of this package that ends when its parent process ends, even if the parent is killed.

python -m embodied_rl.benchmarks.robot_runs.exit_with_parent <parent's process id> serve policy=…
"""

import os
import runpy
import signal
import sys
import threading
import time

LOOKING_S = 0.2
PATIENCE_S = 10.0
"""Seconds from the signal, after which the robot is brought to rest, until this process is killed."""


def end_with(parent: int, patience_s: float = PATIENCE_S) -> None:
    """Watch the parent in a thread; when it has ended, send this process SIGTERM, and kill it after `patience_s`.

    A kernel timer kills it, because this thread ends with the interpreter, and a library may hang after that.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOKING_S)
        signal.setitimer(signal.ITIMER_REAL, patience_s)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def main(arguments: list[str]) -> None:
    """Run `embodied-rl <arguments[1:]>` for the parent `arguments[0]`."""
    end_with(int(arguments[0]))
    sys.argv = ["embodied-rl", *arguments[1:]]
    runpy.run_module("embodied_rl", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
