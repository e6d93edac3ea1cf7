"""The interface of simulators. Imports NumPy and the standard library only, so it loads in any Python environment.

Shapes: `n` environments of one call, `H` executed actions of a chunk, `A` action dimensions, `S` state dimensions,
`P` privileged dimensions, `m` environments with an ended episode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.spec_checks import check_spec

Array = NDArray[Any]


class Source(IntEnum):
    """The source of an executed action. On-policy methods learn only from `POLICY`."""

    POLICY = 0
    HUMAN = 1
    REPLAY = 2
    SAFETY = 3
    HOLD = 4


@dataclass(frozen=True)
class Episode:
    """An episode for an environment to run: training samples episodes, evaluation enumerates them.

    Attributes:
        index: unique in the run; a key of the policy's noise.
        task: position in `SimulatorSpec.tasks`.
        seed: fixes every random choice of the simulator in this episode.
        initial_state: a benchmark's numbered initial state, or None to draw one from `seed`.
        group: episodes of one group start alike; group-relative advantages compare them.
        split: "train", or the name of a held-out split in `SimulatorSpec.splits`.
        final_picture: render the last observation even if the episode terminates. Training does not need this image, so
            it is rendered only on request, for example for a judge of success.
        history: float32 [d, H, A], the first d chunks that were executed in an episode of this task and seed, or None.
            The simulator executes them, without pictures, before the first observation, so that the episode begins
            in mid-episode, with so much less time. Only where `SimulatorSpec.can_replay`.
    """

    index: int
    task: int
    seed: int
    initial_state: int | None = None
    group: int = -1
    split: str = "train"
    final_picture: bool = False
    history: Array | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Camera:
    """A camera of a simulator. `role`: "policy" (input of the actor), "score" or "video"."""

    name: str
    height: int
    width: int
    role: str = "policy"


@dataclass(frozen=True)
class Task:
    """A task of a simulator; `family` groups tasks in reports.

    `initial_states` is the number of numbered initial states of the task; `Episode.initial_state` selects one.
    """

    name: str
    family: str
    initial_states: int = 0


@dataclass(frozen=True)
class SimulatorSpec:
    """The properties of a simulator that the engine needs before it runs.

    Attributes:
        cameras: cameras in `Observation.images`.
        state_names: names of the S entries of `Observation.state`, proprioception only, SI units.
        action_names: names of the A entries of an action.
        action_low, action_high: limits of an action, length A.
        control_hz: control steps per simulated second.
        horizon: control steps after which an episode is truncated.
        tasks: list that `Episode.task` indexes.
        words: all words that can occur in an instruction.
        instruction_length: maximum number of words in an instruction; 0 if unknown.
        splits: names of the held-out splits, without "train".
        privileged_names: names of the P entries of `Observation.privileged`; may be empty.
        device: device of the observations: "cpu", or a CUDA device for a GPU simulator in this process.
        can_snapshot: whether `snapshot` and `restore` work; exact resume needs them.
        can_replay: whether `Episode.history` works, and leads to the bits of the episode that it is of.
        final_observation: "exact", or "previous" if the simulator resets an environment within the step that ends its
            episode: then the final observation is the one before that step, and a truncation bootstraps from it.
        reports_progress: whether observations hold `Observation.progress`.
        hold: the action, length A, with which the robot holds still, as it does while it waits for a policy; None if no
            action does, or it is not known. kept_while_holding: names of the action's entries that repeat the last
            command instead, such as a gripper's.
        seeded: whether the seed determines an episode. If not, groups of episodes cannot start alike, and an evaluation
            draws its episodes instead of enumerating them.

    Raises:
        UserError: a field is wrong; the message names it and its value.
    """

    cameras: tuple[Camera, ...]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
    horizon: int
    tasks: tuple[Task, ...]
    words: tuple[str, ...] = ()
    instruction_length: int = 0
    splits: tuple[str, ...] = ()
    privileged_names: tuple[str, ...] = ()
    device: str = "cpu"
    can_snapshot: bool = False
    can_replay: bool = False
    final_observation: Literal["exact", "previous"] = "exact"
    seeded: bool = True
    reports_progress: bool = False
    hold: tuple[float, ...] | None = None
    kept_while_holding: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_spec(self)

    @property
    def body(self) -> Body:
        """Return the body of the simulated robot."""
        cameras = {camera.name: (camera.height, camera.width) for camera in self.cameras}
        return Body(cameras, self.state_names, self.action_names, self.action_low, self.action_high, self.control_hz)

    @property
    def action_dim(self) -> int:
        return len(self.action_names)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task.family for task in self.tasks))


@dataclass
class Observation:
    """The observation of n environments at the end of a chunk.

    Attributes:
        images: camera name → uint8 [n, h, w, 3].
        state: float32 [n, S], proprioception only.
        instruction: n instructions as text.
        privileged: float32 [n, P] simulator state for critics and auxiliary losses; a policy never gets it.
        progress: float32 [n], how far the task has come since the episode began, 0…1, 1 where its goal holds; for
            experiments with rewards. None unless the spec says that the simulator reports it. A policy never gets it.
    """

    images: dict[str, Array]
    state: Array
    instruction: tuple[str, ...]
    privileged: Array | None = None
    progress: Array | None = None

    def __len__(self) -> int:
        return len(self.instruction)

    def select(self, rows: Sequence[int] | Array) -> "Observation":
        """Return the given rows, in the given order."""
        chosen = np.asarray(rows, np.int64)
        listed: list[int] = chosen.tolist()
        return Observation(
            images={name: image[chosen] for name, image in self.images.items()},
            state=self.state[chosen],
            instruction=tuple(self.instruction[row] for row in listed),
            privileged=None if self.privileged is None else self.privileged[chosen],
            progress=None if self.progress is None else self.progress[chosen],
        )

    def without_privileged(self) -> "Observation":
        """Return the observation without privileged state and progress, as a deployed policy gets it."""
        return replace(self, privileged=None, progress=None)

    @staticmethod
    def concatenate(parts: Sequence["Observation"]) -> "Observation":
        """Concatenate observations, rows in order."""
        privileged = [part.privileged for part in parts if part.privileged is not None]
        progress = [part.progress for part in parts if part.progress is not None]
        return Observation(
            images={name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
            state=np.concatenate([part.state for part in parts]),
            instruction=tuple(text for part in parts for text in part.instruction),
            privileged=np.concatenate(privileged) if len(privileged) == len(parts) else None,
            progress=np.concatenate(progress) if len(progress) == len(parts) else None,
        )


class NotFinite(FloatingPointError):  # noqa: N818
    """An error raised when the physics of one environment becomes NaN or infinite.

    Args:
        message: what happened, after which step.
        row: index of the environment in the simulator.
    """

    def __init__(self, message: str, row: int):
        super().__init__(message)
        self.row = row


class Unavailable(RuntimeError):  # noqa: N818
    """An error raised if a simulator's package, asset, driver or accepted licence is missing on this machine.

    The message names what is missing and the command that installs it; it is shown without a traceback.
    """


@dataclass(frozen=True)
class Diagnosis:
    """One line of `embodied-rl doctor`. `remedy` is empty if nothing is wrong.

    A simulator that depends on more than its package may have two static methods, which need no instance:
    `diagnose(config)` returns a sequence of `Diagnosis` (versions against pins, assets, licences, the renderer) and
    never raises if something is missing; `provenance(config)` returns dict[str, str], the versions of packages and
    sha256 of assets that results depend on, which is published with every evaluation.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


@dataclass
class StepResult:
    """The result of executing one chunk in n environments.

    An environment with an episode that ends at step j < H holds still until the end of the chunk, then starts its next.

    Attributes:
        reward: float32 [n, H], zero at j ≥ steps.
        success: bool [n, H], whether the goal holds after step j; False at j ≥ steps.
        steps: int64 [n] control steps actually executed; entries j ≥ steps of any [n, H] array are meaningless.
        executed: float32 [n, H, A] applied actions, after clipping, a safety filter or human intervention.
        source: uint8 [n, H], a `Source` for each step; HOLD at j ≥ steps.
        terminated: bool [n] whether the task ended, in success or failure; overrides `truncated` on the same step.
        truncated: bool [n] whether the time limit ended the episode.
        observation: current observation; taken after the reset if the episode ended.
        ended: int64 [m] rows with an episode that ended in this chunk.
        final_observation: m rows, the last observation of the episodes that ended, or None when m = 0; see
            `SimulatorSpec.final_observation`. Images of terminated episodes are meaningless, unless the episode
            requested them (`Episode.final_picture`).
        failures: m short texts, why each of the episodes in `ended` failed, such as "wrong object lifted", or "" if it
            did not. Reports count equal texts, so a kind of failure has one text, without numbers. None if the
            simulator gives no reasons.
        between: for each of the n environments pairs of a `Source` and its control steps since the previous result that
            are in no chunk, such as motions to an episode's start; for robots. None: there are none.
    """

    reward: Array
    success: Array
    steps: Array
    executed: Array
    source: Array
    terminated: Array
    truncated: Array
    observation: Observation
    ended: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    final_observation: Observation | None = None
    failures: tuple[str, ...] | None = None
    between: tuple[tuple[tuple[int, int], ...], ...] | None = None


@runtime_checkable
class Simulator(Protocol):
    """A batch of n environments that step together. One object per slice of the pipeline."""

    spec: SimulatorSpec

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        """Start one episode in each environment; None parks it (its rows are meaningless and not computed)."""
        ...

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        """Execute a chunk, float32 [n, H, A]; render once, at its end.

        At the end of its episode an environment starts `next_episodes[row]`, or is parked if that is None.

        Raises:
            NotFinite: the physics of an environment became NaN or infinite; the engine adds which environment it was.
        """
        ...

    def snapshot(self) -> dict[str, Array]:
        """Return everything that `restore` needs to continue bit for bit; arrays only."""
        ...

    def restore(self, state: dict[str, Array]) -> Observation:
        """Restore a snapshot and return the observation that was current when it was taken."""
        ...

    def close(self) -> None:
        """Release all resources of the simulator."""
        ...


@runtime_checkable
class Timed(Simulator, Protocol):
    """A simulator that reports its rendering time, so that the planner can separate it from physics."""

    render_seconds: float
    """Spent on pictures for observations since the simulator was built."""


@runtime_checkable
class Operated(Simulator, Protocol):
    """A simulator with a scripted operator: for demonstrations, `collect policy=expert` and `play policy=expert`."""

    num_envs: int

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return an operator for all environments: a function that gives one control step's actions, float32 [n, A].

        The operator reads the simulator itself, not an observation. Rows of parked environments are meaningless.

        Args:
            faulty: whether to return an operator with systematic faults.

        Raises:
            UserError: the simulator's settings have no operator, or none with faults.
        """
        ...


@runtime_checkable
class Rendered(Protocol):
    """A simulator that renders video frames of any size."""

    def render(self, row: int, width: int, height: int) -> Array:
        """Render one environment as uint8 [height, width, 3]."""
        ...


@dataclass(frozen=True)
class SimulatorLimits:
    """What a simulator cannot do, such as one that stands for hardware.

    Attributes:
        most_environments: of one simulator; None: any number.
        attended: a human sets up each episode, so that no episode is repeated only for a video.
        one_robot: all simulators of this configuration are the same robot, so that only one can be open.
        robot: it is, or simulates, a robot behind a bridge: a human or a safety filter may replace actions
            of the policy, and no episode can be repeated. So a run records who acted, and keeps all episodes on resume.
    """

    most_environments: "int | None" = None
    attended: bool = False
    one_robot: bool = False
    robot: bool = False


@runtime_checkable
class Limited(Protocol):
    """A simulator's class that states limits; without this method there are none."""

    @staticmethod
    def limits(config: Any) -> SimulatorLimits:
        """Return the limits of a simulator with the configuration `config`, an instance of the class's `Config`."""
        ...
