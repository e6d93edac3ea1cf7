"""What the processes of the torchrun tests run: `-m support.torchrun_functions <function>`, of this module
or `rank_functions`."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.runtime.ranks import launch as local
from embodied_rl.runtime.ranks import torchrun
from embodied_rl.runtime.ranks.launch import Ranks
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from tests.support import rank_functions
from tests.support.sleeping import wait_for_signal


def agree(config: object, ranks: Ranks) -> list:
    """Everybody prints, and gives what it was given."""
    print(f"printed by rank {ranks.rank}")
    return ranks.gather((ranks.rank, config))


def signals_everybody(config: object, ranks: Ranks) -> list:
    """As torchrun does."""
    with local.stop_on_signals(ranks) as stop_requested:
        os.kill(os.getpid(), signal.SIGTERM)
        ranks.barrier()
        return ranks.gather(stop_requested())


def fail_while_rank_0_is_stopped(config: str, ranks: Ranks) -> None:
    """Rank 1 fails; rank 0 is told to stop while it waits for nobody."""
    fails = Path(config, "fails")
    if ranks.rank == 1:
        fails.touch()
        raise KeyError("the first cause")
    with local.raise_on_signals(ranks):
        while not fails.exists():
            time.sleep(0.01)
        time.sleep(2)  # it says so meanwhile
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for_signal()


def launched() -> object:
    """Every process: launch."""
    name, config = sys.argv[1], json.loads(sys.argv[2])
    function = getattr(rank_functions, name, None) or globals()[name]
    return torchrun.choose_launcher()(
        function, config, int(os.environ["WORLD_SIZE"]), timeout=float(os.environ["PATIENCE"])
    )


def lead() -> int:
    """Rank 0: say what came of it."""
    try:
        print(json.dumps(launched()))
    except RunFailed as error:
        print(f"failed: {error}")
        return 3
    return 0


if __name__ == "__main__":
    place = TorchrunPlace.find()
    assert place is not None
    torchrun.GRACE = local.GRACE = 3.0
    sys.exit(torchrun.run_process(place, lead, launched))
