"""Records frames of running episodes, with how far each goal of their scene has come."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.goals import GoalProgress, GoalWatch
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.runner import Observer, RunningEpisode


class FrameRecorder(Observer):
    """Records pictures, states and goals of episodes.

    Args:
        spec: of the simulator.
        watch: progress of the goals.
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
