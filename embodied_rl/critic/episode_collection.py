"""Collect episodes with progress labels in simulation: operators and a policy act, the simulator labels each goal.

Images are kept at the beginning, after each chunk and at the end of an episode. Some episodes continue after success:
a finished task looks different later, and can be undone.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from embodied_rl.actors.kinds import ActorSettings, make_actor
from embodied_rl.actors.scripted import OperatorPolicy
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import load_start_noise
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.goals import GoalProgress, GoalWatch, GoalWatched
from embodied_rl.interfaces.policy import Actor, DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, Operated, SimulatorSpec, StepResult
from embodied_rl.rollout.episode_sampler import Purpose, derive_episode_seed, derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.runtime.processes.handle import Deadlines, Handle, NodeShare
from embodied_rl.runtime.processes.local import LocalRuntime, wrap_simulator
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PolicyNode, SamplerNode, SimNode

AT_ONCE = 32
"""Episodes that run side by side."""
CHUNK = 8
"""Control steps between two pictures where no policy says."""
LATE_NOISE = SamplerNode(step_weights=(0, 0, 1, 2))
"""How a policy explores: as in `algo=flow_sde`."""
LONGEST = 3600.0
"""Seconds that a process may take for its share of the episodes."""


@dataclass(frozen=True)
class EpisodeKind:
    """Episodes by an operator, with or without faults, or the exploring policy; some continue after success."""

    actor: Literal["careful", "faulty", "policy"]
    episodes: int
    goes_on: bool = False


@dataclass(frozen=True)
class EpisodeDraw:
    """Seed, purpose and split of scenes and noise; those of another purpose never share a scene."""

    seed: int
    purpose: Purpose = "train"
    split: str = "train"


def mix_sources(episodes: int) -> tuple[EpisodeKind, ...]:
    """Return sources of `episodes` episodes: half of them by operators, a quarter going on after success."""
    shares: tuple[tuple[Literal["careful", "faulty", "policy"], float, bool], ...] = (
        ("careful", 0.18, False), ("faulty", 0.18, False), ("policy", 0.38, False),
        ("careful", 0.08, True), ("faulty", 0.08, True), ("policy", 0.10, True),
    )  # fmt: skip
    counts = [round(share * episodes) for _, share, _ in shares]
    counts[2] += episodes - sum(counts)
    return tuple(
        EpisodeKind(actor, count, goes_on)
        for (actor, _, goes_on), count in zip(shares, counts, strict=True)
        if count > 0
    )


def collect_episodes(
    sim: SimNode,
    policy: str | None,
    sources: Sequence[EpisodeKind],
    draw: EpisodeDraw,
    processes: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> list[JudgedEpisode]:
    """Run episodes, and return them in the order of the sources.

    Args:
        sim: the simulator.
        policy: a policy file or `asset:<name>`, which explores; its chunk is the distance of pictures. None: operators
            alone act, and pictures are `CHUNK` steps apart.
        sources: who acts, how often.
        draw: of scenes and noise.
        processes: how many run a share of each source; 1 runs all here. It changes how a policy's actions are rounded.
        report: is called with a line about each source.

    Raises:
        UserError: the simulator cannot judge its goals, has no operator, or cannot go on after success; or the policy
            does not fit it.
        WorkerDied: a process died.
    """
    check_sources(sim, policy, sources)
    shares: list[list[tuple[EpisodeKind, range]]] = [[] for _ in range(processes)]
    first = 0
    for source in sources:
        for number, share in enumerate(shares):
            count = source.episodes * (number + 1) // processes - source.episodes * number // processes
            share.append((source, range(first, first + count)))
            first += count
    with ExitStack() as stack:
        if processes == 1:
            parts = [EpisodeCollector(sim, policy).collect(shares[0], draw)]
        else:
            factory, kwargs = f"{__name__}:{start_episode_collector.__name__}", {"sim": sim, "policy": policy}
            deadlines, machine = Deadlines(call=LONGEST), LocalRuntime()
            handles: list[Handle] = []
            for number in range(processes):
                name = f"episode collector {number}"
                handles.append(machine.worker(factory, kwargs, name=name, deadlines=deadlines, share=NodeShare()))
                stack.callback(handles[-1].close)
            calls = [handle.submit("collect", each, draw) for handle, each in zip(handles, shares, strict=True)]
            parts = [call.result() for call in calls]
    collected: list[JudgedEpisode] = []
    for number, source in enumerate(sources):
        episodes = [episode for part in parts for episode in part[number]]
        successes = sum(episode.success for episode in episodes)
        report(f"{source.actor}{', going on' * source.goes_on}: {source.episodes} episodes, {successes} succeed")
        collected += episodes
    return collected


def check_sources(sim: SimNode, policy: str | None, sources: Sequence[EpisodeKind]) -> None:
    """Check, before anything is simulated, that the policy fits the simulator and that episodes can go on."""
    for source in sources:
        simulator = find_kind(sim, source).simulator
        if not issubclass(simulator, GoalWatched):
            raise UserError(
                f"{simulator.__name__} does not report how far all goals of a scene have come, which a critic learns "
                "from. The tabletop does; for another one collect a dataset: embodied-rl critic train "
                "dataset=<folder>.",
                code="goals-not-reported",
            )
        if source.actor != "policy" and not hasattr(simulator, "expert"):
            raise UserError(
                f"{simulator.__name__} has no scripted operator, whose episodes a critic learns from.",
                code="operator-missing",
            )
    if policy is not None:
        build.check_fit(read_metadata(build.resolve_policy_file(policy)).embodiment, SimulatorKind.find(sim).spec)


def find_kind(sim: SimNode, source: EpisodeKind) -> SimulatorKind:
    """Return the simulator of a source; raise `UserError` if it cannot go on after success as asked."""
    if not source.goes_on:
        return SimulatorKind.find(sim)
    try:
        return SimulatorKind.find(replace(sim, options=sim.options | {"terminate_on_success": False}))
    except UserError as error:
        raise UserError(
            f"Episodes that go on after success need sim.terminate_on_success=false: {error}", code=error.code
        ) from None


class EpisodeCollector:
    """Runs episodes of several sources; may run in a separate process."""

    def __init__(self, sim: SimNode, policy: str | None) -> None:
        self._sim = sim
        self._actor: Actor | None = None
        if policy is not None:
            path = build.resolve_policy_file(policy)
            network, embodiment = build.load_backbone(path)
            build.check_fit(embodiment, SimulatorKind.find(sim).spec)
            settings = ActorSettings(PolicyNode(name=read_metadata(path).policy), LATE_NOISE, False, ())
            actor: Any = make_actor(network, embodiment, settings).eval()
            actor.start_noise = load_start_noise(path, network.spec)
            self._actor = actor

    def collect(self, shares: Sequence[tuple[EpisodeKind, range]], draw: EpisodeDraw) -> list[list[JudgedEpisode]]:
        """Return the episodes of each share: the source, and the indices of its episodes."""
        return [self._run(source, indices, draw) for source, indices in shares]

    def close(self) -> None:
        """Do nothing: simulators are closed after each share."""

    def _run(self, source: EpisodeKind, indices: range, draw: EpisodeDraw) -> list[JudgedEpisode]:
        if not indices:
            return []
        kind = find_kind(self._sim, source)
        episodes: list[Episode] = []
        for index in indices:
            seed = derive_episode_seed(draw.purpose, draw.split, draw.seed, index)
            episodes.append(Episode(index, index % len(kind.spec.tasks), seed, split=draw.split, final_picture=True))
        with closing(kind.build(AT_ONCE)) as simulator:
            assert isinstance(simulator, GoalWatched), "checked before"
            chunk = CHUNK if self._actor is None else self._actor.embodiment.executed
            recorder = FrameRecorder(simulator.spec, simulator.watch_goals(), chunk, source.actor)
            if source.actor == "policy":
                assert self._actor is not None, "a policy that acts has a file"
                policy: DeployedPolicy = _Explorer(self._actor)
            else:
                assert isinstance(simulator, Operated), "checked before"
                policy = OperatorPolicy(simulator.expert(source.actor == "faulty"), recorder.rows.__getitem__)
            runner = EpisodeRunner(policy, simulator.spec, derive_noise_seed(draw.purpose, draw.seed))
            runner.run([wrap_simulator(simulator)], AT_ONCE, episodes, recorder)
        return [recorder.finished[episode.index] for episode in episodes]


def start_episode_collector(sim: SimNode, policy: str | None) -> EpisodeCollector:
    """Return the collector of a separate process, which computes on one core."""
    torch.set_num_threads(1)
    return EpisodeCollector(sim, policy)


class _Explorer:
    """A policy that explores, as in training."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        return self._actor.act(observation, keys, explore=True).actions


@dataclass(frozen=True)
class _Frame:
    images: dict[str, Array]
    state: Array
    goals: Sequence[GoalProgress]

    @staticmethod
    def take(observation: Observation, row: int, goals: Sequence[GoalProgress]) -> "_Frame":
        images = {name: image[row].copy() for name, image in observation.images.items()}
        return _Frame(images, observation.state[row].copy(), goals)


class FrameRecorder(Observer):
    """Records pictures, states and goals of running episodes.

    Attributes:
        rows: episode → its environment, while it runs.
        finished: episode → its recording.
    """

    def __init__(self, spec: SimulatorSpec, watch: GoalWatch, chunk: int, actor: str) -> None:
        self._spec, self._watch, self._chunk, self._actor = spec, watch, chunk, actor
        self.rows: dict[int, int] = {}
        self.finished: dict[int, JudgedEpisode] = {}
        self._frames: dict[int, list[_Frame]] = {}
        self._success: set[int] = set()

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        goals = self._watch.current()
        for each in started:
            index = each.episode.index
            self.rows[index], self._frames[index] = each.row, [_Frame.take(observation, each.row, goals[each.row])]
            self._success.discard(index)

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        ended = {int(row): place for place, row in enumerate(result.ended)}
        goals = self._watch.current() if any(each.steps % self._chunk == 0 for each in running) else []
        for each in running:
            index = each.episode.index
            if result.success[each.row, : result.steps[each.row]].any():
                self._success.add(index)
            if each.row in ended:
                assert result.final_observation is not None, "an episode that ended has a last observation"
                place = ended[each.row]
                last = _Frame.take(result.final_observation, place, self._watch.ended()[place])
                self._frames[index].append(last)
            elif each.steps % self._chunk == 0:
                self._frames[index].append(_Frame.take(result.observation, each.row, goals[each.row]))

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        for each in ended:
            index = each.episode.index
            frames = self._frames.pop(index)
            goals: list[JudgedGoal] = []
            for number, goal in enumerate(frames[0].goals):
                progress = np.array([frame.goals[number].progress for frame in frames], np.float32)
                done = np.array([frame.goals[number].done for frame in frames])
                goals.append(JudgedGoal(goal.instruction, goal.relation, progress, done, true=True))
            images = {name: np.stack([frame.images[name] for frame in frames]) for name in frames[0].images}
            state = np.stack([frame.state for frame in frames])
            family = self._spec.tasks[each.episode.task].family
            success = index in self._success
            self.finished[index] = JudgedEpisode(images, state, tuple(goals), success, self._actor, family)
            del self.rows[index]
