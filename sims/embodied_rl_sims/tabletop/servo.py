"""One tabletop driven like a robot: by control steps, or by steps of its servo."""

from collections.abc import Mapping
from dataclasses import replace

import mujoco
import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import Pose, RobotOutcome, RobotReading
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl_sims.common import make_empty_result
from embodied_rl_sims.tabletop.arm import follow_action
from embodied_rl_sims.tabletop.settings import SUBSTEPS, TIMESTEP, TabletopConfig
from embodied_rl_sims.tabletop.simulator import Tabletop

JOINTS = (*(f"joint{number}" for number in range(1, 8)), "finger1", "finger2")
_DOWN = np.array([1.0, 0.0, 0.0, 0.0])  # x, y, z, w: the hand points down, its fingers open along world y
_OPEN = 1.0
BRAKING = 5  # steps of the servo, in which it stops from its largest speed with 9.4 m/s²


class TabletopServo(Tabletop):
    """A tabletop of one environment; implements `embodied_rl.interfaces.servo.ServoedRobot`.

    When its episode ends, the scene stays visible until the next one begins.

    Raises:
        UserError: the settings add sensor noise or delays; a real robot has its own.
    """

    joint_names = JOINTS
    servo_s = TIMESTEP

    def __init__(self, config: TabletopConfig) -> None:
        if config.state_noise or config.inference_delay != (0, 0):
            raise UserError(
                "sim.state_noise and sim.inference_delay belong to the simulator alone: a robot's states are measured, "
                "and its delays are real. Leave them out.",
                code="key-unused",
            )
        super().__init__(config, 1)
        self.focal: Mapping[str, float] = {
            camera.name: self._find_focal(camera.name, camera.height) for camera in self.spec.cameras
        }
        self._outcome: RobotOutcome | None = None
        self._seen: Observation | None = None
        self._gripper, self._substeps = _OPEN, -1
        self._lead: Array | None = None  # lead of the commanded point over the arm when it began to brake
        self._braked = 0
        self._rewards, self._reached = 0.0, False

    # -- episodes -------------------------------------------------------------------------------------------------

    def begin(self, episode: Episode) -> None:
        if not 0 <= episode.task < len(self.spec.tasks):
            raise UserError(
                f"task={episode.task}: there are tasks 0 … {len(self.spec.tasks) - 1}.", code="task-unknown"
            )
        if episode.split not in ("train", *self.spec.splits):
            raise UserError(
                f"split={episode.split!r} is none of {', '.join(('train', *self.spec.splits))}.", code="split-unknown"
            )
        if episode.initial_state is not None:
            raise UserError(
                f"initial_state={episode.initial_state}: the tabletop's tasks have no numbered initial states.",
                code="initial-states-missing",
            )
        if episode.seed < 0:
            raise UserError(f"seed={episode.seed} must be at least 0.", code="seed-invalid")
        self._gripper, self._substeps = _OPEN, -1
        self._lead, self._braked = None, 0
        self._outcome, self._rewards, self._reached = None, 0.0, False
        self._seen = self.reset([replace(episode, final_picture=True)])

    def _begin(self, row: int, episode: Episode | None) -> None:
        if episode is not None:  # `step` returns None for an ended episode
            super()._begin(row, episode)

    @property
    def instruction(self) -> str:
        layout = self._layout[0]
        return "" if layout is None else layout.instruction

    @property
    def outcome(self) -> RobotOutcome | None:
        return self._outcome

    @property
    def progress(self) -> float:
        """Last measured progress of the task, 0…1; 0 unless the settings enable progress."""
        seen = self._seen
        return 0.0 if seen is None or seen.progress is None else float(seen.progress[0])

    # -- lockstep -------------------------------------------------------------------------------------------------

    def control_step(self, action: Array) -> None:
        if self._outcome is None:
            result = self.step(np.asarray(action, np.float32)[None, None], [None])
            self._seen = result.observation
            self._record_result(result)

    def _record_result(self, result: StepResult) -> None:
        """Record the result of a control step, and the outcome if it was the last one."""
        self._rewards += float(result.reward.sum())
        self._reached |= bool(result.success.any())
        if not len(result.ended):
            return
        failure = "" if self._reached or result.failures is None else result.failures[0]
        late = bool(result.truncated[0])
        self._outcome = RobotOutcome(self._reached, failure, late, int(self._clock[0]), self._rewards)

    # -- real time ------------------------------------------------------------------------------------------------

    def servo(self, command: Array | None) -> None:
        if command is not None:
            self._gripper = float(command[3])
            self._substeps = max(self._substeps, 0)
        self._lead, self._braked = None, 0
        speed = np.zeros(3) if command is None else np.asarray(command[:3], np.float64)
        self._move(np.array([[*(speed * TIMESTEP), self._gripper]]))

    def brake(self) -> None:
        # The arm's speed is proportional to the commanded point's lead, so the lead is reduced to 0 along a ramp.
        tool = self._bodies.tool[0]
        lead = self._command[0] - tool if self._lead is None else self._lead
        self._lead, self._braked = lead, self._braked + 1
        aim = tool + lead * (1 - self._braked / BRAKING) if self._braked <= BRAKING else self._command[0]
        self._move(np.array([[*(aim - self._command[0]), self._gripper]]))

    def _move(self, moved: Array) -> None:
        """Run one step of the servo: `moved` [1, 4] is the displacement of the commanded point, and the gripper."""
        self._command, control = follow_action(self._command, self._bodies.tool, moved, self._running())
        self._bodies.servo(0, control[0])
        self._bodies.gather()
        self._seen = None
        if self._substeps >= 0 and self._outcome is None:
            self._substeps += 1
            if self._substeps % SUBSTEPS == 0:
                running = self._running()
                result = make_empty_result(self.spec, moved[:, None])
                self._count_step(running)
                self._end_step(result, 0, running)
                result.ended = np.flatnonzero(result.terminated | result.truncated)
                result.failures = self._explain_failures(result)
                self._record_result(result)

    # -- sensors --------------------------------------------------------------------------------------------------

    def read(self) -> RobotReading:
        joints = slice(len(JOINTS))
        data = self._bodies.data[0]
        orientation = np.zeros(4)
        mujoco.mju_mat2Quat(orientation, data.site("tool").xmat)
        tool: Pose = (self._bodies.tool[0].copy(), np.roll(orientation, -1))
        commanded: Pose = (self._command[0].copy(), _DOWN.copy())
        return RobotReading(self._bodies.qpos[0, joints].copy(), data.qvel[joints].copy(), tool, commanded)

    def take_pictures(self) -> dict[str, Array]:
        if self._seen is None:
            self._seen = self._observe()
        return {name: pictures[0] for name, pictures in self._seen.images.items()}

    def _find_focal(self, camera: str, height: int) -> float:
        fovy = float(self._bodies.model.camera(camera).fovy[0])
        return height / 2 / float(np.tan(np.deg2rad(fovy) / 2))
