"""Recording of a scripted operator: the observation of every control step, with the operator's following chunk."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from embodied_rl.actors.scripted import OperatorPolicy
from embodied_rl.interfaces.sim import Array, Episode, Observation, Operated, StepResult
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode, split_into_batches
from embodied_rl.runtime.processes.local import wrap_simulator


@dataclass(frozen=True)
class Disturbance:
    """Disturbances that are added to the operator's moves before execution; recorded actions stay undisturbed.

    So demonstrations show how the operator recovers (DART, arXiv:1703.09327). The last entry of an action is the
    gripper, all others are moves.

    Attributes:
        noise: standard deviation of independent noise, as a share of an action's upper limit.
        drift: largest constant offset, as a share of the limit, redrawn every eight control steps.
        drift_share: share of those eight control steps that drift at all.
        slip: chance of a control step that the gripper does the opposite.
        keep: whether to keep rows with a drift or a slip within their chunk, which reacts to events the row does not
            show. Otherwise rows stay only if their prefix covers all of these events: see `Demonstrations.least`.
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
        executed: float32 [M, H, A], what the simulator executed of it, with the disturbances; repeated alike.
        least: int64 [M], length of the shortest prefix of `executed` that holds all drifts and slips of the chunk; 0
            without any, or if rows are kept with them. The rest of `actions` reacts to such a prefix alone.
        episode: int64 [M], `Episode.index`. step: int64 [M], control steps of the episode before this one.
        success: bool [M], whether that episode ended in success.
    """

    observation: Observation
    actions: Array
    executed: Array
    least: Array
    episode: Array
    step: Array
    success: Array

    def __len__(self) -> int:
        return len(self.actions)

    def select(self, rows: Array) -> "Demonstrations":
        """Return the given rows, int64 [m]."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "observation"}
        return Demonstrations(self.observation.select(rows), **columns)


def record_demonstrations(
    simulator: Operated,
    episodes: Sequence[Episode],
    *,
    chunk: int,
    disturbance: Disturbance,
    seed: int,
    faulty: bool = False,
    longest: int | None = None,
    prefix: int = 0,
) -> Demonstrations:
    """Let the operator run episodes, and record every control step.

    Args:
        simulator: with the operator.
        episodes: run in batches of `simulator.num_envs`.
        chunk: H, number of actions recorded with each control step.
        disturbance: disturbance of the operator's moves.
        faulty: use the operator with systematic faults.
        longest: control steps after which an episode is cut; None cuts none.
        prefix: length of the longest prefix that a policy gets; without `disturbance.keep`, rows that need a longer
            one to cover all drifts and slips are left out.

    Raises:
        UserError: the operator or the simulator returned NaN; the message names the episode.
        WorkerDied: the simulator's worker died.
    """
    rng = np.random.default_rng([seed, len(episodes)])
    handle, width = wrap_simulator(simulator), simulator.num_envs
    parts: list[Demonstrations] = []
    for batch in split_into_batches(episodes, width):
        high = np.array(simulator.spec.action_high)
        recorder = _DemonstrationRecorder(simulator.expert(faulty), _disturber(disturbance, high, width, rng))
        row_of = {episode.index: row for row, episode in enumerate(batch)}
        actor = OperatorPolicy(recorder.operate, row_of.__getitem__)
        runner = EpisodeRunner(actor, simulator.spec, seed, longest=longest)
        runner.run([handle], width, batch, recorder)
        parts.append(recorder.cut(batch, chunk, disturbance.keep, prefix))
    names = [field.name for field in fields(Demonstrations) if field.name != "observation"]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Demonstrations(Observation.concatenate([part.observation for part in parts]), **columns)


class _DemonstrationRecorder(Observer):
    """Records what the operator saw and chose at each control step, and which of n environments succeeded.

    Args:
        operator: gives its actions, float32 [n, A].
        disturb: chosen actions [n, A] → executed actions [n, A], and which rows drift or slip, bool [n].
    """

    def __init__(self, operator: Callable[[], Array], disturb: Callable[[Array], tuple[Array, Array]]) -> None:
        self._operator, self._disturb = operator, disturb
        self._chosen: list[Array] = []
        self._executed: list[Array] = []
        self._upset: list[Array] = []
        self._seen: list[Observation] = []
        self._running: list[Array] = []
        self._success: set[int] = set()

    def operate(self) -> Array:
        """Return the operator's disturbed actions [n, A] for one control step."""
        self._chosen.append(self._operator())
        executed, upset = self._disturb(self._chosen[-1])
        self._upset.append(upset)
        return executed

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        rows = np.array([each.row for each in running])
        self._seen.append(before.select(rows))
        self._running.append(np.isin(np.arange(len(before)), rows))
        self._executed.append(result.executed[:, 0].copy())
        self._success |= set(rows[result.success[rows, 0]].tolist())

    def cut(self, episodes: Sequence[Episode], chunk: int, keep: bool, prefix: int) -> Demonstrations:
        """Return each control step with its following chunk; leave out what `prefix` does not cover, unless `keep`."""
        running, chosen, executed = (np.stack(each) for each in (self._running, self._chosen, self._executed))
        upset = np.stack(self._upset) & (not keep)
        last = np.maximum(running.sum(axis=0) - 1, 0)
        follow = np.minimum(np.arange(len(running))[:, None] + np.arange(chunk), last[:, None, None])  # [n, steps, H]
        columns = np.arange(running.shape[1])
        least = find_least_prefix(upset[follow.swapaxes(0, 1), columns[:, None]])
        kept = running & (least <= prefix)
        steps, rows = np.nonzero(kept)
        shown = zip(self._seen, kept, running, strict=True)
        after = follow[rows, steps], rows[:, None]
        return Demonstrations(
            observation=Observation.concatenate([seen.select(np.flatnonzero(k[r])) for seen, k, r in shown]),
            actions=chosen[after].astype(np.float32),
            executed=executed[after].astype(np.float32),
            least=least[steps, rows],
            episode=np.array([episodes[int(row)].index for row in rows], np.int64),
            step=steps.astype(np.int64),
            success=np.isin(rows, list(self._success)),
        )


def find_least_prefix(upset: Array) -> Array:
    """Return for chunks bool [..., H] the length int64 [...] of the shortest prefix that holds all that are set."""
    after_last = upset.shape[-1] - np.argmax(upset[..., ::-1], axis=-1)
    return np.where(upset.any(axis=-1), after_last, 0)


def _disturber(
    disturbance: Disturbance, high: Array, num_envs: int, rng: np.random.Generator
) -> Callable[[Array], tuple[Array, Array]]:
    """Return a function to call at each control step: chosen actions → executed [n, A], drift or slip bool [n]."""
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
