"""Gathers judged episodes in simulation: operators and a policy act, the simulator says how far each goal has come.

Pictures are kept at the beginning, after each chunk and at the end of an episode. Some episodes go on after success:
what is done looks different later, too, and what is done can be undone.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from embodied_rl.actors.kinds import ActorSettings, make_actor
from embodied_rl.actors.scripted import OperatorPolicy
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import read_metadata
from embodied_rl.config.schema import PolicyNode, SamplerNode, SimNode
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.goals import GoalProgress, GoalWatch, GoalWatched
from embodied_rl.interfaces.policy import Actor, DeployedPolicy, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, Operated, Simulator, SimulatorSpec, StepResult
from embodied_rl.processes.local import wrap_simulator
from embodied_rl.rollout.episode_sampler import Purpose, derive_episode_seed, derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.simulators.kind import SimulatorKind

AT_ONCE = 32
"""Episodes that run side by side."""
CHUNK = 8
"""Control steps between two pictures where no policy says."""
LATE_NOISE = SamplerNode(step_weights=(0, 0, 1, 2))
"""How a policy explores: as in `algo=flow_sde`."""


@dataclass(frozen=True)
class Source:
    """Episodes of one kind.

    Attributes:
        actor: who acts: an operator, with or without faults, or the policy, exploring.
        episodes: how many.
        goes_on: whether they run to the time limit, also after success.
    """

    actor: Literal["careful", "faulty", "policy"]
    episodes: int
    goes_on: bool = False


def mix_sources(episodes: int) -> tuple[Source, ...]:
    """Return sources of so many episodes: half of them by operators, a quarter going on after success."""
    shares: tuple[tuple[Literal["careful", "faulty", "policy"], float, bool], ...] = (
        ("careful", 0.18, False), ("faulty", 0.18, False), ("policy", 0.38, False),
        ("careful", 0.08, True), ("faulty", 0.08, True), ("policy", 0.10, True),
    )  # fmt: skip
    counts = [round(share * episodes) for _, share, _ in shares]
    counts[2] += episodes - sum(counts)
    return tuple(
        Source(actor, count, goes_on) for (actor, _, goes_on), count in zip(shares, counts, strict=True) if count
    )


def gather_episodes(
    sim: SimNode,
    policy: str | None,
    sources: Sequence[Source],
    seed: int,
    *,
    purpose: Purpose = "train",
    split: str = "train",
    tell: Callable[[str], None] = lambda line: None,
) -> list[JudgedEpisode]:
    """Run episodes in this process, and return them in order.

    Args:
        sim: the simulator.
        policy: a policy file or `asset:<name>`, which explores, and whose chunks say how far pictures are apart; None
            where operators alone act, whose pictures are `CHUNK` steps apart.
        sources: who acts, how often.
        seed: of scenes and noise.
        purpose: of the episodes; those of another purpose never share a scene with them.
        split: "train" or a held-out split.
        tell: is called with a line about each source.

    Raises:
        UserError: the simulator cannot judge its goals, has no operator, or cannot go on after success; or the policy
            does not fit it.
    """
    actor = None if policy is None else _build_explorer(policy, sim)
    found: list[JudgedEpisode] = []
    for source in sources:
        kind = _find_kind(sim, source)
        tasks = range(len(found), len(found) + source.episodes)
        listed = [_draw_episode(kind.spec, index, seed, purpose, split) for index in tasks]
        with closing(kind.build(AT_ONCE)) as simulator:
            gathered = _run_source(simulator, source, actor, listed, derive_noise_seed(purpose, seed))
        rate = np.mean([episode.success for episode in gathered])
        tell(f"{source.episodes} episodes, {source.actor}{', going on' * source.goes_on}: {rate:.1%} succeed")
        found += gathered
    return found


def _find_kind(sim: SimNode, source: Source) -> SimulatorKind:
    if not source.goes_on:
        return SimulatorKind.find(sim)
    try:
        return SimulatorKind.find(replace(sim, options=sim.options | {"terminate_on_success": False}))
    except UserError as error:
        raise UserError(f"Episodes that go on after success need sim.terminate_on_success=false: {error}") from None


def _draw_episode(spec: SimulatorSpec, index: int, seed: int, purpose: Purpose, split: str) -> Episode:
    drawn = derive_episode_seed(purpose, split, seed, index)
    return Episode(index, index % len(spec.tasks), drawn, split=split, final_picture=True)


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
    simulator: Simulator, source: Source, actor: Actor | None, episodes: Sequence[Episode], seed: int
) -> list[JudgedEpisode]:
    if not isinstance(simulator, GoalWatched):
        raise UserError(
            "This simulator does not tell how far all goals of a scene have come, which a critic learns from. The "
            "tabletop does; for another one collect a dataset: embodied-rl critic train dataset=<folder>."
        )
    chunk = CHUNK if actor is None else actor.embodiment.executed
    recorder = _Recorder(simulator.spec, simulator.watch_goals(), chunk, source.actor)
    if source.actor == "policy":
        assert actor is not None, "whose episodes are asked for has a file"
        policy: DeployedPolicy = _Explorer(actor)
    else:
        if not isinstance(simulator, Operated):
            raise UserError("This simulator has no scripted operator, whose episodes a critic learns from.")
        policy = OperatorPolicy(simulator.expert(source.actor == "faulty"), recorder.rows.__getitem__)
    handle = wrap_simulator(simulator)
    EpisodeRunner(policy, simulator.spec, seed).run([handle], AT_ONCE, episodes, recorder)
    return [recorder.finished[episode.index] for episode in episodes]


class _Recorder(Observer):
    """Records pictures, states and goals of episodes.

    Args:
        spec: of the simulator.
        watch: tells how far goals have come.
        chunk: control steps between two frames.
        actor: who acts.

    Attributes:
        rows: episode → its environment, while it runs.
        finished: episode → what was recorded.
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
            index, task = each.episode.index, self._spec.tasks[each.episode.task]
            frames, success = self._frames.pop(index), index in self._success
            self.finished[index] = _join(frames, success, self._actor, task.family)
            del self.rows[index]


@dataclass(frozen=True)
class _Frame:
    images: dict[str, Array]
    state: Array
    goals: Sequence[GoalProgress]

    @staticmethod
    def take(observation: Observation, row: int, goals: Sequence[GoalProgress]) -> "_Frame":
        images = {name: image[row].copy() for name, image in observation.images.items()}
        return _Frame(images, observation.state[row].copy(), goals)


def _join(frames: Sequence[_Frame], success: bool, actor: str, family: str) -> JudgedEpisode:
    goals = tuple(
        JudgedGoal(
            goal.instruction,
            goal.relation,
            np.array([frame.goals[number].progress for frame in frames], np.float32),
            np.array([frame.goals[number].done for frame in frames]),
            true=True,
        )
        for number, goal in enumerate(frames[0].goals)
    )
    images = {name: np.stack([frame.images[name] for frame in frames]) for name in frames[0].images}
    return JudgedEpisode(images, np.stack([frame.state for frame in frames]), goals, success, actor, family)
