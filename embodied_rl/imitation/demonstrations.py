"""Recording a scripted operator: observations at every control step, each with the chunk the operator went on to do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, Observation, Operated


@dataclass(frozen=True)
class Disturbance:
    """What is added to the operator's moves before they are executed; recorded actions stay the operator's own.

    So the operator is seen to recover (DART, arXiv:1703.09327). The last entry of an action is the gripper, all others
    are moves.

    Attributes:
        noise: standard deviation of independent noise, as a share of an action's upper limit.
        drift: largest constant offset, as a share of the limit, redrawn every eight control steps.
        drift_share: share of those eight control steps that drift at all.
        slip: chance of a control step that the gripper does the opposite.
        keep: whether rows are kept whose chunk meets a drift or a slip, and so answers what the row does not show.
    """

    noise: float = 0.1
    drift: float = 0.0
    drift_share: float = 0.5
    slip: float = 0.0
    keep: bool = True


@dataclass
class Demonstrations:
    """M recorded control steps.

    Attributes:
        observation: M rows.
        actions: float32 [M, H, A], the operator's chunk from each row on; the last action is repeated past the end.
        episode: int64 [M], `Episode.index`. success: bool [M], whether that episode ended in success.
    """

    observation: Observation
    actions: Array
    episode: Array
    success: Array

    def __len__(self) -> int:
        return len(self.actions)


def record(
    simulator: Operated,
    episodes: Sequence[Episode],
    *,
    chunk: int,
    disturbance: Disturbance,
    seed: int,
    faulty: bool = False,
    longest: int | None = None,
) -> Demonstrations:
    """Let the operator run `episodes`, at most `longest` control steps each, and keep every control step."""
    rng = np.random.default_rng([seed, len(episodes)])
    width = simulator.num_envs
    most = longest or simulator.spec.horizon
    parts = [
        _batch(simulator, episodes[start : start + width], chunk, disturbance, rng, faulty, most)
        for start in range(0, len(episodes), width)
    ]
    return Demonstrations(
        observation=Observation.concatenate([part.observation for part in parts]),
        actions=np.concatenate([part.actions for part in parts]),
        episode=np.concatenate([part.episode for part in parts]),
        success=np.concatenate([part.success for part in parts]),
    )


@dataclass(frozen=True)
class _Seen:
    """One control step of all environments: [n] rows, the operator's actions [n, A], and bool [n] masks."""

    observation: Observation
    chosen: Array
    running: Array
    upset: Array


def _batch(
    simulator: Operated,
    episodes: Sequence[Episode],
    chunk: int,
    disturbance: Disturbance,
    rng: np.random.Generator,
    faulty: bool,
    longest: int,
) -> Demonstrations:
    """One round: every environment runs one episode."""
    num_envs = simulator.num_envs
    operator = simulator.expert(faulty)
    disturb = _disturber(disturbance, np.array(simulator.spec.action_high), num_envs, rng)
    observation = simulator.reset([*episodes, *[None] * (num_envs - len(episodes))])
    running = np.arange(num_envs) < len(episodes)
    done = np.zeros(num_envs, bool)
    seen: list[_Seen] = []
    for _ in range(longest):
        chosen = operator()
        executed, upset = disturb(chosen)
        seen.append(_Seen(observation, chosen, running.copy(), upset & (not disturbance.keep)))
        result = simulator.step(executed[:, None], [None] * num_envs)
        done |= result.success[:, 0]
        running &= ~(result.terminated | result.truncated)
        observation = result.observation
        if not running.any():
            break
    return _cut(seen, episodes, done, chunk)


def _disturber(
    disturbance: Disturbance, high: Array, num_envs: int, rng: np.random.Generator
) -> Callable[[Array], tuple[Array, Array]]:
    """A function of chosen actions [n, A], once a control step: what is executed, and who drifts or slips, bool [n]."""
    moves = len(high) - 1  # the last one is the gripper
    drift = np.zeros((num_envs, moves))
    steps = 0

    def disturb(chosen: Array) -> tuple[Array, Array]:
        nonlocal drift, steps
        if steps % 8 == 0:
            drift = disturbance.drift * rng.uniform(-1, 1, (num_envs, moves))
            drift *= rng.random((num_envs, 1)) < disturbance.drift_share
        steps += 1
        executed = chosen.copy()
        executed[:, :moves] += (drift + disturbance.noise * rng.standard_normal((num_envs, moves))) * high[:moves]
        slips = rng.random((num_envs, 1)) < disturbance.slip
        executed[:, moves:] *= np.where(slips, -1, 1)
        return executed, slips[:, 0] | drift.any(axis=1)

    return disturb


def _cut(seen: list[_Seen], episodes: Sequence[Episode], done: Array, chunk: int) -> Demonstrations:
    """Rows of running environments, each with the chunk that follows, without those whose chunk is upset."""
    running = np.stack([step.running for step in seen])  # [steps, n]
    chosen = np.stack([step.chosen for step in seen])  # [steps, n, A]
    upset = np.stack([step.upset for step in seen])
    last = np.maximum(running.sum(axis=0) - 1, 0)
    follow = np.minimum(np.arange(len(seen))[:, None] + np.arange(chunk), last[:, None, None])  # [n, steps, H]
    columns = np.arange(running.shape[1])
    kept = running & ~upset[follow.swapaxes(0, 1), columns[:, None]].any(axis=-1)
    steps, rows = np.nonzero(kept)
    parts = [step.observation.select(np.flatnonzero(row)) for step, row in zip(seen, kept, strict=True)]
    observation = Observation.concatenate(parts)
    return Demonstrations(
        observation=observation,
        actions=chosen[follow[rows, steps], rows[:, None]].astype(np.float32),
        episode=np.array([episodes[int(row)].index for row in rows], np.int64),
        success=done[rows],
    )
