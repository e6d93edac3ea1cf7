"""Collect episodes with progress labels in simulation: operators and a policy act, the simulator labels each goal.

Images are kept at the beginning, after each chunk and at the end of an episode. Some episodes continue after success:
a finished task looks different later, and can be undone.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from embodied_rl.actors.kinds import ActorSettings, make_actor
from embodied_rl.actors.scripted import OperatorPolicy
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import read_metadata
from embodied_rl.critic.frame_recorder import FrameRecorder
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.goals import GoalWatched
from embodied_rl.interfaces.policy import Actor, DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, Operated, Simulator, SimulatorSpec
from embodied_rl.rollout.episode_sampler import Purpose, derive_episode_seed, derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner
from embodied_rl.runtime.processes.handle import Deadlines, NodeShare
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
    """Episodes of one kind.

    Attributes:
        actor: who acts: an operator, with or without faults, or the policy, exploring.
        episodes: how many.
        goes_on: whether they run to the time limit, also after success.
    """

    actor: Literal["careful", "faulty", "policy"]
    episodes: int
    goes_on: bool = False


@dataclass(frozen=True)
class EpisodeDraw:
    """How scenes and noise are drawn.

    Attributes:
        seed: of both.
        purpose: of the episodes; those of another purpose never share a scene with them.
        split: "train" or a held-out split.
    """

    seed: int
    purpose: Purpose = "train"
    split: str = "train"


@dataclass(frozen=True)
class _Share:
    """A part of a source: its episodes from the index `first` on."""

    source: EpisodeKind
    first: int


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
    tell: Callable[[str], None] = lambda line: None,
) -> list[JudgedEpisode]:
    """Run episodes, and return them in the order of the sources.

    Args:
        sim: the simulator.
        policy: a policy file or `asset:<name>`, which explores; its chunk is the distance of pictures. None: operators
            alone act, and pictures are `CHUNK` steps apart.
        sources: who acts, how often.
        draw: of scenes and noise.
        processes: how many run a share of each source; 1 runs all here. It changes how a policy's actions are rounded.
        tell: is called with a line about each source.

    Raises:
        UserError: the simulator cannot judge its goals, has no operator, or cannot go on after success; or the policy
            does not fit it.
        WorkerDied: a process died.
    """
    check_sources(sim, policy, sources)
    shares = _divide(sources, processes)
    alone = processes == 1
    parts = (
        [EpisodeCollector(sim, policy).collect(shares[0], draw)]
        if alone
        else _collect_in_processes(sim, policy, shares, draw)
    )
    found: list[JudgedEpisode] = []
    for number, source in enumerate(sources):
        gathered = [episode for part in parts for episode in part[number]]
        successes = sum(episode.success for episode in gathered)
        tell(f"{source.actor}{', going on' * source.goes_on}: {source.episodes} episodes, {successes} succeed")
        found += gathered
    return found


def _collect_in_processes(
    sim: SimNode, policy: str | None, shares: Sequence[Sequence[_Share]], draw: EpisodeDraw
) -> list[list[list[JudgedEpisode]]]:
    """Collect each share in a separate process."""
    factory, kwargs = f"{__name__}:{start_episode_collector.__name__}", {"sim": sim, "policy": policy}
    deadlines, machine = Deadlines(call=LONGEST), LocalRuntime()
    with ExitStack() as stack:
        handles = [
            machine.worker(factory, kwargs, name=f"episode collector {number}", deadlines=deadlines, share=NodeShare())
            for number in range(len(shares))
        ]
        for handle in handles:
            stack.callback(handle.close)
        calls = [handle.submit("collect", each, draw) for handle, each in zip(handles, shares, strict=True)]
        return [call.result() for call in calls]


def check_sources(sim: SimNode, policy: str | None, sources: Sequence[EpisodeKind]) -> None:
    """Check, before anything is simulated, that the policy fits the simulator and that episodes can go on.

    Raises:
        UserError: see `collect_episodes`.
    """
    for source in sources:
        kind = find_kind(sim, source)
        _check_simulator(kind.simulator, source)
    if policy is not None:
        build.check_fit(read_metadata(build.resolve_policy_file(policy)).embodiment, SimulatorKind.find(sim).spec)


def find_kind(sim: SimNode, source: EpisodeKind) -> SimulatorKind:
    """Return the simulator of a source.

    Raises:
        UserError: its episodes should go on after success, and the simulator cannot do that.
    """
    if not source.goes_on:
        return SimulatorKind.find(sim)
    try:
        return SimulatorKind.find(replace(sim, options=sim.options | {"terminate_on_success": False}))
    except UserError as error:
        raise UserError(
            f"Episodes that go on after success need sim.terminate_on_success=false: {error}", code=error.code
        ) from None


def _check_simulator(simulator: type[Any], source: EpisodeKind) -> None:
    if not issubclass(simulator, GoalWatched):
        raise UserError(
            f"{simulator.__name__} does not tell how far all goals of a scene have come, which a critic learns from. "
            "The tabletop does; for another one collect a dataset: embodied-rl critic train dataset=<folder>.",
            code="goals-not-reported",
        )
    if source.actor != "policy" and not hasattr(simulator, "expert"):
        raise UserError(
            f"{simulator.__name__} has no scripted operator, whose episodes a critic learns from.",
            code="operator-missing",
        )


def _divide(sources: Sequence[EpisodeKind], processes: int) -> list[list[_Share]]:
    """Return the shares of each process: of every source about as many episodes."""
    shares: list[list[_Share]] = [[] for _ in range(processes)]
    first = 0
    for source in sources:
        for number, share in enumerate(shares):
            count = source.episodes * (number + 1) // processes - source.episodes * number // processes
            share.append(_Share(replace(source, episodes=count), first))
            first += count
    return shares


class EpisodeCollector:
    """Runs shares of sources; may run in a separate process.

    Args:
        sim: the simulator.
        policy: see `collect_episodes`.
    """

    def __init__(self, sim: SimNode, policy: str | None) -> None:
        self._sim = sim
        self._actor = None if policy is None else _build_explorer(policy, sim)

    def collect(self, shares: Sequence[_Share], draw: EpisodeDraw) -> list[list[JudgedEpisode]]:
        """Return the episodes of each share.

        Raises:
            UserError: see `collect_episodes`.
        """
        return [self._run(share, draw) for share in shares]

    def close(self) -> None:
        """Do nothing: simulators are closed after each share."""

    def _run(self, share: _Share, draw: EpisodeDraw) -> list[JudgedEpisode]:
        kind = find_kind(self._sim, share.source)
        indices = range(share.first, share.first + share.source.episodes)
        episodes = [_draw_episode(kind.spec, index, draw) for index in indices]
        if not episodes:
            return []
        with closing(kind.build(AT_ONCE)) as simulator:
            return _run_source(simulator, share.source.actor, self._actor, episodes, draw)


def start_episode_collector(sim: SimNode, policy: str | None) -> EpisodeCollector:
    """Return the collector of a separate process, which computes on one core."""
    torch.set_num_threads(1)
    return EpisodeCollector(sim, policy)


def _draw_episode(spec: SimulatorSpec, index: int, draw: EpisodeDraw) -> Episode:
    seed = derive_episode_seed(draw.purpose, draw.split, draw.seed, index)
    return Episode(index, index % len(spec.tasks), seed, split=draw.split, final_picture=True)


def _build_explorer(policy: str, sim: SimNode) -> Actor:
    path = build.resolve_policy_file(policy)
    network, embodiment = build.load_backbone(path)
    build.check_fit(embodiment, SimulatorKind.find(sim).spec)
    settings = ActorSettings(PolicyNode(name=read_metadata(path).policy), LATE_NOISE, False, ())
    return make_actor(network, embodiment, settings).eval()


class _Explorer:
    """A policy that explores, as in training."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        return self._actor.act(observation, keys, explore=True).actions


def _run_source(
    simulator: Simulator, who: str, actor: Actor | None, episodes: Sequence[Episode], draw: EpisodeDraw
) -> list[JudgedEpisode]:
    assert isinstance(simulator, GoalWatched), "checked before"
    chunk = CHUNK if actor is None else actor.embodiment.executed
    recorder = FrameRecorder(simulator.spec, simulator.watch_goals(), chunk, who)
    if who == "policy":
        assert actor is not None, "a policy that acts has a file"
        policy: DeployedPolicy = _Explorer(actor)
    else:
        assert isinstance(simulator, Operated), "checked before"
        policy = OperatorPolicy(simulator.expert(who == "faulty"), recorder.rows.__getitem__)
    runner = EpisodeRunner(policy, simulator.spec, derive_noise_seed(draw.purpose, draw.seed))
    runner.run([wrap_simulator(simulator)], AT_ONCE, episodes, recorder)
    return [recorder.finished[episode.index] for episode in episodes]
