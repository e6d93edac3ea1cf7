"""A recorded episode, and its file.

episode_000000.npz    images/<camera> uint8 [T, h, w, 3] and state float32 [T, S] before each control step;
                      actions float32 [T, A], reward float32 [T] and success bool [T] of each control step;
                      the robot, as in `Body`: action_names, state_names, action_low, action_high, control_hz;
                      and state_units
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embodied_rl.deployment.execution.demonstration import ABOUT
from embodied_rl.interfaces.description import SI
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult


@dataclass
class Record:
    """One recorded episode: observations, actions, rewards and success of each control step.

    Attributes:
        observations: the observation before each control step, of one row.
        actions: float32 [A] each, as executed.
        source: a `Source` for each action.
        terminated: whether the task ended, in success or failure.
        final: the last observation of an episode that the time limit ended, of one row; else None.
    """

    episode: Episode
    instruction: str
    observations: list[Observation] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    terminated: bool = False
    final: Observation | None = None

    def add(self, before: Observation, result: StepResult, row: int) -> None:
        """Add one control step, the only one of `result`, in environment `row`."""
        self.observations.append(before.select([row]))
        self.actions.append(result.executed[row, 0].copy())
        self.reward.append(float(result.reward[row, 0]))
        self.success.append(bool(result.success[row, 0]))
        self.source.append(int(result.source[row, 0]))
        self.terminated = bool(result.terminated[row])
        if result.truncated[row] and not self.terminated and result.final_observation is not None:
            self.final = result.final_observation.select([result.ended.tolist().index(row)])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the episode's file."""
        seen = Observation.concatenate(self.observations)
        return {
            **{f"images/{name}": image for name, image in seen.images.items()},
            "state": seen.state,
            "actions": np.stack(self.actions),
            "reward": np.array(self.reward, np.float32),
            "success": np.array(self.success, bool),
        }


def write_npz(out: Path, record: Record, body: Body) -> str:
    """Write an episode's file of a robot into the folder `out`; return the file's name."""
    file = f"episode_{record.episode.index:06d}.npz"
    about = {name: np.array(SI if name == "state_units" else getattr(body, name)) for name in ABOUT}
    np.savez_compressed(out / file, allow_pickle=False, **record.arrays(), **about)
    return file
