"""What a process can find out about itself, as JSON on its standard output; it then does what its first word says."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from embodied_rl.runtime.processes.local import ProcessHandle
from tests.support.sleeping import wait_for_signal


def draw() -> dict[str, Any]:
    """Return what must not depend on how this process was started, and whether it was forked."""
    return {
        "forked": "tests.support.fork_server" in sys.orig_argv,
        "words": sys.argv,
        "module": __name__,
        "package": __package__,
        "main": sys.modules["__main__"].__dict__["__name__"],
        "folder": os.getcwd(),
        "paths": sys.path,
        "environment": dict(os.environ),
        "told": subprocess.check_output(["sh", "-c", "echo $PYTHONPATH $CRITIC_TOKEN"], text=True),
        "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
        "pid": os.getpid(),
        "parent": os.getppid(),
        "open": [
            re.sub(r"\d+\]", "]", os.readlink(path))
            for path in sorted(Path("/proc/self/fd").iterdir())
            if path.is_symlink()
        ],
        "streams": [(each.encoding, each.errors, each.line_buffering) for each in (sys.stdout, sys.stderr)],
        "handlers": {number.name: repr(signal.getsignal(number)).split(" at ")[0] for number in signal.Signals},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "limits": [resource.getrlimit(number) for number in range(10)],
        "threads": [thread.name for thread in threading.enumerate()],
        "umask": os.umask(os.umask(0)),
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "flags": str(sys.flags),
        "warnings": sys.warnoptions,
    }


class Sitter:
    """A role that draws itself."""

    def draw(self) -> dict[str, Any]:
        return draw()

    def close(self) -> None:
        pass


def draw_child() -> dict[str, Any]:
    """Return the portrait of a child, as a run starts them."""
    handle = ProcessHandle("tests.support.self_portrait:Sitter", {}, log=Path("log"))
    try:
        found = handle.submit("draw").result()
        return {
            **found,
            "flags": None,
            "words": len(found["words"]),
            "open": sorted(found["open"]),
            "parent": found["parent"] == os.getpid(),
            "pid": handle.pid == found["pid"],
        }
    finally:
        handle.close()


def main(end: str) -> None:
    """Print the portrait; then leave with a code, fail, or wait."""
    print(json.dumps(draw_child() if end == "child" else draw()), flush=True)
    if end == "wait":
        wait_for_signal()
    if end == "fail":
        raise RuntimeError("as it was told")
    sys.exit(0 if end == "child" else int(end))


if __name__ == "__main__":
    main(sys.argv[1])
