"""The entry point by which the command line runs as a process of torchrun. Imports torch only there."""

from collections.abc import Callable

from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace


def launch(run: Callable[[], int], dispatch: Callable[[], int]) -> int | None:
    """Run the command line as a process of torchrun, and return its exit code; None if torchrun did not start it.

    Args:
        run: runs the command line and prints its errors. dispatch: the same, raising them.
    """
    place = TorchrunPlace.find()
    if place is None:
        return None
    from embodied_rl.runtime.ranks import torchrun  # imports torch

    return torchrun.run_process(place, run, dispatch)
