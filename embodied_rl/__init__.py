"""embodied-rl: online reinforcement learning for vision-language-action policies."""

from os import PathLike
from typing import TYPE_CHECKING

from embodied_rl.interfaces.version import __version__

if TYPE_CHECKING:
    from embodied_rl.assembly.loaded import LoadedPolicy
    from embodied_rl.assembly.python_run import Run

__all__ = ["__version__", "load_policy", "train"]


def load_policy(policy: "str | PathLike[str]", *, seed: "int | None" = None, device: str = "cpu") -> "LoadedPolicy":
    """Load a policy to act with: read `.spec`, call `.act(observation)`.

    Args:
        policy: a run folder, a checkpoint of one, a policy file, or asset:<name>.
        seed: None starts each chunk from the mean of the policy's noise, so that equal observations have equal answers.
            A number draws the start anew for each call, the same draws for the same number and sequence of calls.
        device: where the network computes: "cpu", "cuda" or "cuda:<number>".

    Raises:
        UserError: there is no such policy, its file is damaged or of a policy that is not installed, or the seed or the
            device is none.
        ModuleNotFoundError: only the distribution for robots, embodied-rl-robot, is installed.
    """
    try:
        from embodied_rl.assembly import loaded  # imports torch, which workers of simulators may lack
    except ModuleNotFoundError as error:
        if error.name != "embodied_rl.assembly":
            raise
        raise ModuleNotFoundError("a policy needs the training platform: pip install embodied-rl") from error
    return loaded.load_policy(policy, seed=seed, device=device)


def train(experiment: str, *overrides: str, seed: int = 0) -> "Run":
    """Train as `embodied-rl train experiment=<experiment> seed=<seed> <overrides>` does, and wait for the end.

    Training takes place in a new process, so that a notebook or script needs no guard; its output is printed.

    Args:
        experiment: a file of `configs/experiment`, such as "demo".
        overrides: settings as on the command line, such as "algo.lr=1e-4".
        seed: of the run; the same seed on the same machine gives the same bits.

    Returns:
        The finished run: `.path`, `.metrics` of each iteration, the reports `.before` and `.report`, `.films`.

    Raises:
        UserError: the command refused the settings; the code is its own.
        RunFailed: training did not finish; the message is its last line.
    """
    from embodied_rl.assembly.python_run import train_in_process

    return train_in_process(experiment, overrides, seed)
