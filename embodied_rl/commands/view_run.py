"""Episodes of a run that stores none, for `view`: its deployed policy plays episodes of the report once more."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from embodied_rl.assembly.build import build_actor, find_method
from embodied_rl.assembly.evaluated_policies import find_policy, find_run, find_simulator
from embodied_rl.checkpoints.policy_file import load_actor
from embodied_rl.commands.collect import AT_ONCE, collect_episodes
from embodied_rl.commands.eval import check_evaluation, open_evaluation
from embodied_rl.config.freeze import thaw_config
from embodied_rl.datasets.record import Record
from embodied_rl.evaluate.benchmark import DRAWN
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Observation, SimulatorSpec
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.rollout.replay.signals import Signal, ViewedEpisode, describe_record
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import AlgoNode, EvalConfig, PolicyNode, SimChange, TrainConfig, config_file
from embodied_rl.schema.untrusted_settings import check_file
from embodied_rl.system.untrusted_files import check_links, name_file

ROWS = 64
"""Observations whose values are estimated at once."""


def check_run(folder: Path) -> int:
    """Check, without loading weights, that the policy of a run can play; return how many episodes a report has.

    Raises:
        UserError: the run has no checkpoint yet, it names code to run, or its simulator is a robot, which `view` does
            not move.
    """
    check_links(folder)
    file = find_policy(EvalConfig(policy=str(folder)))[1]
    assert file is not None, "a folder is neither a word nor a server"
    with _explain(folder):
        node = find_simulator(file, find_run(file), SimChange())
        if node is not None and SimulatorKind.find(node).limits.robot:
            raise UserError(
                f"source={folder} is a run on a robot, and stores no episodes; view does not move robots. Record one: "
                "embodied-rl deploy records each episode, and `collect from=<recording>` makes a dataset of it.",
                code="replay-missing",
            )
        config = find_report(folder)
        check_evaluation(config)
    return config.episodes or DRAWN


def find_report(folder: Path) -> EvalConfig:
    """Return the evaluation whose episodes are those of a run's report; for other runs than of `train`, of `eval`."""
    if (learner := read_learner(folder)) is None:
        return EvalConfig(policy=str(folder))
    return EvalConfig(policy=str(folder), task=learner.train.task, episodes=learner.train.final_episodes)


@contextmanager
def _explain(folder: Path) -> Iterator[None]:
    """Add to errors about settings how they are given."""
    try:
        yield
    except UserError as error:
        if error.code not in ("setting-not-trusted", "simulator-missing"):
            raise
        remedy = f"view takes no settings: give them to embodied-rl collect policy={folder} format=replay; view that."
        raise UserError(f"{str(error).rstrip('.')}. {remedy}", code=error.code) from None


def play_episodes(folder: Path, numbers: Sequence[int]) -> dict[int, ViewedEpisode]:
    """Play episodes of a run's report with its deployed policy, and return them by number, with the critic's values.

    Raises:
        UserError: see `check_run`; or the run's critic cannot be loaded.
        WorkerDied: the simulator's worker died.
    """
    evaluation = open_evaluation(find_report(folder))
    (part,), (policy,) = evaluation.parts, evaluation.policies
    critic = load_critic(folder, part.spec)
    wanted = [part.episodes[number] for number in numbers]
    envs, noise = part.kind.limit_environments(min(len(wanted), AT_ONCE)), derive_noise_seed("report", 0)
    with closing(part.kind.build(envs)) as simulator:
        assert policy.actor is not None, "a run has a policy"
        records = list(collect_episodes(policy.actor, simulator, wanted, noise, envs))
    return {
        record.episode.index: describe_record(record, part.spec, list(estimate_values(critic, record, noise)))
        for record in records
    }


def read_learner(folder: Path) -> TrainConfig | None:
    """Return the configuration of a run of `train`, without what its policy's file replaces; None for other runs.

    Raises:
        UserError: it is damaged, or its algorithm or policy names code or addresses.
    """
    run = RunFolder.open(folder)
    if not run.config.is_file() or "eval_episodes" in config_file.read_config(run.config):  # a key of sft alone
        return None
    config = config_file.load_config(TrainConfig, run.config)
    file = {"checkpoint": None, "statistics": None, "tokenizer": None}
    policy = replace(config.policy, **file, device="cpu", precision=None, autocast=None, compile=False)
    check_file(PolicyNode, thaw_config(policy), run.config, folder=run.path, where="policy")
    check_file(AlgoNode, thaw_config(config.algo), run.config, folder=run.path, where="algo")
    return replace(config, policy=policy)


def load_critic(folder: Path, spec: SimulatorSpec) -> Actor | None:
    """Return the actor of a run with its critic, on the CPU; None if the run trained none, such as one of `sft`.

    Raises:
        UserError: the configuration is damaged, or the checkpoint does not fit it.
    """
    if (config := read_learner(folder)) is None:
        return None
    file = find_policy(EvalConfig(policy=str(folder)))[1]
    with name_file(RunFolder(folder).config):
        needs = find_method(config.algo).needs
        if not needs.critic or file is None:
            return None
        actor = build_actor(replace(config.policy, checkpoint=str(file)), config.algo.sampler, spec, needs)
    load_actor(file, actor)
    return actor.eval()


def estimate_values(critic: Actor | None, record: Record, seed: int) -> Iterator[Signal]:
    """Yield the signal of the critic's value of each observation of an episode, if there is a critic."""
    if critic is None:
        return
    seen, found = Observation.concatenate(record.observations), []
    for rows in np.array_split(np.arange(len(seen)), -(-len(seen) // ROWS)):
        keys = NoiseKeys(seed, np.full(len(rows), record.episode.index, np.int64), rows.astype(np.int64))
        with torch.no_grad():
            found.append(critic.value(seen.select(rows), keys).cpu().numpy())
    yield Signal(("value",), np.arange(len(seen)), np.concatenate(found)[:, None], ("value",))
