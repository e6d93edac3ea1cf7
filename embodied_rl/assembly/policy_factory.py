"""Policies by a word on the command line: `expert`, `random`, or a checkpoint."""

from collections.abc import Callable
from difflib import get_close_matches
from itertools import count
from pathlib import Path

from embodied_rl.actors.kinds import deploy_actor
from embodied_rl.actors.scripted import Operator, OperatorPolicy, RandomPolicy
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import load_start_noise
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, DeployedPolicy
from embodied_rl.interfaces.sim import Array, Operated, Simulator
from embodied_rl.runtime.processes.handle import RestartLimitReached
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import CollectConfig, PlayConfig
from embodied_rl.system.untrusted_files import name_file

WORDS = ("expert", "random")
RESTARTS = 3
"""How often a scripted operator's simulator is replaced in one evaluation."""


def load_deployed(text: str) -> Actor:
    """Load the policy of a checkpoint for deployment, without exploration or critic.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, pickled, or made by a policy that is not installed.
    """
    path = build.resolve_policy_file(text)
    network, embodiment = build.load_backbone(path)
    with name_file(path):
        return deploy_actor(network, embodiment, read_metadata(path).extra, load_start_noise(path, network.spec))


def check_acting(config: CollectConfig | PlayConfig) -> None:
    """Check that the policy of `config` exists and can be read. Raises `UserError` otherwise."""
    if config.policy not in WORDS:
        read_metadata(find_policy_file(config.policy))


def is_address(text: str) -> bool:
    """Return whether a text is the address of a policy server."""
    return text.startswith(("ws://", "wss://"))


def names_file(text: str) -> bool:
    """Return whether a text names a policy file, not a word or a server."""
    return text not in WORDS and not is_address(text)


def find_policy_file(text: str) -> Path:
    """Return the policy file for a text that is neither `expert` nor `random`.

    Raises:
        UserError: there is no such file.
    """
    if is_address(text):
        raise UserError(
            f"policy={text}: only `eval` accepts a server. Give a run, a file or asset:<name>.",
            code="policy-not-a-file",
        )
    if text in WORDS and not Path(text).exists():
        raise UserError(
            f"policy={text}: only a policy's file can act here. Give a run, a file or asset:<name>.",
            code="policy-not-a-file",
        )
    close = get_close_matches(text, WORDS, n=1, cutoff=0.6)
    if close and not Path(text).exists():
        raise UserError(
            f"policy={text}: there is no such checkpoint. Did you mean '{close[0]}'?", code="checkpoint-missing"
        )
    file = build.resolve_policy_file(text)
    if not file.is_file():
        raise UserError(f"There is no policy file {file}.", code="checkpoint-missing")
    return file


def open_expert(make: Callable[[int], Simulator], name: str) -> tuple[OperatorPolicy, InlineHandle]:
    """Return a simulator of one environment and its operator as a policy; both are replaced if their process dies.

    Args:
        make: builds a simulator with a given number of environments.

    Raises:
        UserError: the simulator has no operator.
    """

    def refuse() -> Array:
        raise AssertionError("the operator belongs to a simulator, which is built first")

    policy = OperatorPolicy(refuse, lambda index: 0)
    builds = count()

    def build() -> Simulator:
        if next(builds) > RESTARTS:
            raise RestartLimitReached(
                f"{name}: its process died more than {RESTARTS} times; see above for the first cause"
            )
        simulator = make(1)
        policy.operator = _find_operator(simulator)
        return simulator

    return policy, InlineHandle(build, name)


def check_operator(kind: SimulatorKind) -> None:
    """Check that a simulator has an operator for its settings, by building it if its class may have one.

    Raises:
        UserError: it has none.
    """
    if not hasattr(kind.simulator, "expert"):
        raise _refuse_expert()
    open_expert(kind.build, f"simulator '{kind.node.name}'")[1].close()


def choose_policy(text: str, simulator: Simulator, num_envs: int) -> DeployedPolicy:
    """Return the policy for a word, for episodes with indices from 0 that fill a simulator row by row.

    Raises:
        UserError: the simulator has no operator, or the checkpoint is missing.
    """
    if text == "random":
        return RandomPolicy(simulator.spec)
    if text == "expert":
        return OperatorPolicy(_find_operator(simulator), lambda index: index % num_envs)
    find_policy_file(text)
    return load_deployed(text)


def _find_operator(simulator: Simulator) -> Operator:
    if not isinstance(simulator, Operated):
        raise _refuse_expert()
    return simulator.expert()


def _refuse_expert() -> UserError:
    message = "policy=expert: this simulator has no scripted operator; give a checkpoint, or random."
    return UserError(message, code="operator-missing")
