"""Pool of rollout workers: rank 0 starts them and publishes weights to them; each is built in its own process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from embodied_rl.actors.learning.weights import Weights, publish_weights
from embodied_rl.assembly import build
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.policy_worker import PolicyWorker
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.processes.handle import Board, BoardReader, Deadlines, Handle, NodeShare, Runtime
from embodied_rl.runtime.ranks.collective import choose_gpu
from embodied_rl.runtime.selection import count_gpus
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import Plan, TrainConfig
from embodied_rl.training.dispatch import Dispatcher
from embodied_rl.training.rollout_worker import (
    REPORT,
    PublishedWeights,
    RolloutWork,
    RolloutWorker,
    WorkerStart,
    make_collector,
)

LEAST_TIMEOUT = 300.0
"""Least timeout of a rank that waits for another rank, in seconds."""


def make_rollout_worker(
    config: TrainConfig, blueprint: build.Blueprint, work: RolloutWork, number: int, board: BoardReader
) -> RolloutWorker:
    """Build rollout worker `number` of a run; it receives its weights later."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    choose_gpu(config.plan.ranks + number)
    actor = blueprint.build()
    actor.version = -1
    envs = config.sim.num_envs // int(config.plan.rollout_workers or 1)
    rollout = Rollout.allocate(actor, work.decisions, envs, extras=work.extras)
    kind, runtime = SimulatorKind.find(config.sim), runtimes.select_runtime(config)
    collecting = make_collector(config, kind, work, rollout, runtime, number, f"worker {number}'s")
    return RolloutWorker(PolicyWorker(actor), board, collecting, traces=work.needs.learns_from != "replay")


class RolloutWorkers:
    """The rollout workers of a run, as rank 0 controls them.

    Args:
        board: the board from which they read weights.
        handles: of the workers, in the order of their environments.
        staleness: number of versions that they may be ahead.
        segments: number of rollouts that a version learns from.
        versions: number of versions that will learn, None if unknown.
    """

    def __init__(
        self, board: Board, handles: Sequence[Handle], staleness: int, segments: int = 1, versions: int | None = None
    ) -> None:
        self.dispatcher = Dispatcher(handles, staleness, segments, versions)
        self._board, self._count, self.handles = board, len(handles), handles
        self._everything: Weights | None = None

    @staticmethod
    def start(config: TrainConfig, runtime: Runtime, blueprint: build.Blueprint, work: RolloutWork) -> "RolloutWorkers":
        """Start the rollout workers of a run.

        Args:
            runtime: starts the workers.
            work: the work of each worker.
        """
        board = runtime.board()
        given = {"config": config, "blueprint": blueprint, "work": work, "board": board.reader()}
        handles = [
            runtime.worker(
                f"{__name__}:{make_rollout_worker.__name__}",
                given | {"number": number},
                name=f"rollout worker {number}",
                deadlines=Deadlines(config.plan.start_timeout, worker_report_timeout(config.plan)),
                share=NodeShare(gpus=count_gpus(config.policy.device)),
            )
            for number in range(int(config.plan.rollout_workers or 0))
        ]
        staleness = config.staleness if config.mode == "async" else 0
        return RolloutWorkers(board, handles, staleness, work.segments, config.train.iterations)

    def offer(self, actor: Actor) -> None:
        """Publish the actor's weights, and let the workers begin the rollouts that this version allows."""
        learned, exploration = publish_weights(actor, actor.version), actor.exploration()
        self._board.publish(actor.version, PublishedWeights(learned, exploration))
        if self._everything is None:
            self._everything = publish_weights(actor, actor.version, everything=True)
        self.dispatcher.offer(actor.version, WorkerStart(self._everything, PublishedWeights(learned, exploration)))

    @contextmanager
    def lend_simulators(self) -> Iterator[None]:
        """Let the ranks use the workers' simulators in the `with` block, between two parts of rollouts."""
        with self.dispatcher.pause() as handles:
            yield
            for handle in handles:
                handle.submit("restart_episodes").result()

    def load(self, version: int, state: Mapping[str, Array], learned: Mapping[str, Array]) -> None:
        """Continue with a version's rollouts, from a `SharedExperience.state` and the state of the curriculum."""
        prefixes = [f"worker/{worker}/" for worker in range(self._count)]
        states = [{k.removeprefix(p): array for k, array in state.items() if k.startswith(p)} for p in prefixes]
        self.dispatcher.load(version, [each | dict(learned) for each in states])

    def close(self) -> None:
        """End the workers and release the board."""
        self.dispatcher.close()
        self._board.close()


def worker_silence_timeout(plan: Plan) -> float:
    """Return how long a healthy process that simulates may be silent, in seconds.

    That is the time to detect a hanging simulator, to replace it, and to execute the first call of the new one.
    """
    return plan.start_timeout + 2 * plan.call_timeout


def worker_report_timeout(plan: Plan) -> float:
    """Return the seconds in which a rollout worker must report before it counts as hung and is replaced."""
    return worker_silence_timeout(plan) + REPORT


def rank_timeout(config: TrainConfig) -> float:
    """Return how long ranks wait for each other, in seconds: enough to detect and to replace a hanging simulator."""
    foreign = python_environments.find_interpreter(config.sim) is not None
    apart = foreign or config.plan.allocation == "split"
    return max(LEAST_TIMEOUT, worker_silence_timeout(config.plan) if apart else 0.0)
