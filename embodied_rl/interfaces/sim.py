"""What a simulator is to the engine: NumPy and the standard library only, so that it loads in any environment.

Shapes: `n` environments of one call, `H` executed actions of a chunk, `A` action dimensions, `S` state dimensions,
`P` privileged dimensions, `m` environments whose episode ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.robot import Body

Array = NDArray[Any]

_TRUSTED = "trusted"


def trusted_setting(default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """A field of a simulator's `Config` that decides which code runs: a module to import, say, or an interpreter.

    It counts where the user has typed it, or the configuration on this machine has it. Policy files, run folders and
    benchmarks may come from strangers: what they say of it is refused, unless it is the default or holds numbers alone.
    """
    return field(default=default, default_factory=default_factory, metadata={_TRUSTED: True})


def list_trusted_defaults(config: type[Any]) -> dict[str, Any]:
    """The fields that `trusted_setting` made, with their defaults (None where there is none)."""
    found = {item.name: item for item in fields(config) if item.metadata.get(_TRUSTED)}
    made = {name: item.default_factory() for name, item in found.items() if item.default_factory is not MISSING}
    return {name: None if item.default is MISSING else item.default for name, item in found.items()} | made


class Source(IntEnum):
    """Who chose an executed action. On-policy methods learn from `POLICY` alone."""

    POLICY = 0
    HUMAN = 1
    REPLAY = 2
    SAFETY = 3
    HOLD = 4


@dataclass(frozen=True)
class Episode:
    """What an environment runs next: training samples episodes, evaluation enumerates them.

    Attributes:
        index: unique in the run; the policy's noise is keyed by it.
        task: position in `SimulatorSpec.tasks`.
        seed: fixes every random choice of the simulator in this episode.
        initial_state: a benchmark's numbered initial state, or None to draw one from `seed`.
        group: episodes of one group start alike; group-relative advantages compare them.
        split: "train", or the name of a held-out split in `SimulatorSpec.splits`.
        final_picture: draw the last observation also where the episode terminates. Nobody learns from that picture, so
            it is drawn for who asks: a judge of what was reached, say.
    """

    index: int
    task: int
    seed: int
    initial_state: int | None = None
    group: int = -1
    split: str = "train"
    final_picture: bool = False


@dataclass(frozen=True)
class Camera:
    """One camera of a simulator. `role`: "policy" (the actor sees it), "score" or "video"."""

    name: str
    height: int
    width: int
    role: str = "policy"


@dataclass(frozen=True)
class Task:
    """One task of a simulator; `family` groups tasks in reports.

    `initial_states` is how many numbered ones the benchmark has for it, which `Episode.initial_state` points into.
    """

    name: str
    family: str
    initial_states: int = 0


@dataclass(frozen=True)
class SimulatorSpec:
    """What the engine has to know of a simulator before it runs.

    Attributes:
        cameras: what `Observation.images` holds.
        state_names: the S entries of `Observation.state`, proprioception only, SI units.
        action_names: the A entries of an action.
        action_low, action_high: limits of an action, length A.
        control_hz: control steps per simulated second.
        horizon: control steps after which an episode is truncated.
        tasks: what `Episode.task` points into.
        words: every word an instruction can hold.
        instruction_length: the most words that an instruction has; 0 where that is not known.
        splits: the names of held-out splits, without "train".
        privileged_names: the P entries of `Observation.privileged`; empty when there are none.
        device: where observations live: "cpu", or a CUDA device for a GPU simulator in this process.
        can_snapshot: whether `snapshot` and `restore` work, which exact resume needs.
        final_observation: "exact", or "previous" where the simulator resets an environment within the step that ends
            its episode: then the final observation is the one before that step, and a truncation bootstraps from it.
        seeded: whether an episode follows from its seed. Where it does not, groups of episodes cannot start alike, and
            an evaluation draws its episodes instead of enumerating them.
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
    final_observation: Literal["exact", "previous"] = "exact"
    seeded: bool = True

    @property
    def body(self) -> Body:
        """The robot in it."""
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
    """What n environments show at the end of a chunk.

    Attributes:
        images: camera name → uint8 [n, h, w, 3].
        state: float32 [n, S], proprioception only.
        instruction: n goals in words.
        privileged: float32 [n, P] simulator truth for critics and auxiliary losses; a policy never sees it.
    """

    images: dict[str, Array]
    state: Array
    instruction: tuple[str, ...]
    privileged: Array | None = None

    def __len__(self) -> int:
        return len(self.instruction)

    def select(self, rows: Sequence[int] | Array) -> "Observation":
        """The given rows, in the given order."""
        chosen = np.asarray(rows, np.int64)
        listed: list[int] = chosen.tolist()
        return Observation(
            images={name: image[chosen] for name, image in self.images.items()},
            state=self.state[chosen],
            instruction=tuple(self.instruction[row] for row in listed),
            privileged=None if self.privileged is None else self.privileged[chosen],
        )

    def without_privileged(self) -> "Observation":
        """What a deployed policy has."""
        return replace(self, privileged=None)

    @staticmethod
    def concatenate(parts: Sequence["Observation"]) -> "Observation":
        """Several observations as one, rows in order."""
        privileged = [part.privileged for part in parts if part.privileged is not None]
        return Observation(
            images={name: np.concatenate([part.images[name] for part in parts]) for name in parts[0].images},
            state=np.concatenate([part.state for part in parts]),
            instruction=tuple(text for part in parts for text in part.instruction),
            privileged=np.concatenate(privileged) if len(privileged) == len(parts) else None,
        )


class NotFinite(FloatingPointError):  # noqa: N818  it says what happened
    """The physics of one environment left the numbers.

    Args:
        message: what happened, after which step.
        row: which environment of the simulator.
    """

    def __init__(self, message: str, row: int):
        super().__init__(message)
        self.row = row


class Unavailable(RuntimeError):  # noqa: N818  it says what happened
    """Something that a simulator needs is not on this machine: a package, an asset, a driver, a licence accepted.

    The message says what, and the command that brings it; the user sees it without a traceback.
    """


@dataclass(frozen=True)
class Diagnosis:
    """One line of `embodied-rl doctor`. `remedy` is empty where nothing is wrong.

    A simulator that depends on more than its package may have two static methods, for which nothing has to be built:
    `diagnose(config)` returns a sequence of these (versions against pins, assets, licences, the renderer) and never
    raises for what is missing; `provenance(config)` returns dict[str, str], what results depend on (versions of
    packages, sha256 of assets), which is published with every evaluation.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


@dataclass
class StepResult:
    """What executing one chunk in n environments gave.

    An environment whose episode ends at step j < H holds still for the rest of the chunk, then starts its next episode.

    Attributes:
        reward: float32 [n, H], zero at j ≥ steps.
        success: bool [n, H], whether the goal holds after step j; False at j ≥ steps.
        steps: int64 [n] control steps really executed; entries j ≥ steps of any [n, H] array mean nothing.
        executed: float32 [n, H, A] what was applied, after clipping, a safety filter or a human.
        source: uint8 [n, H], a `Source` for each step; HOLD at j ≥ steps.
        terminated: bool [n] the task ended, in success or failure; wins over `truncated` on the same step.
        truncated: bool [n] the time limit ended it.
        observation: after the reset, where the episode ended.
        ended: int64 [m] rows whose episode ended in this chunk.
        final_observation: m rows, the last observation of the episodes that ended, or None when m = 0; see
            `SimulatorSpec.final_observation`. Pictures of those that terminated mean nothing, unless their episode
            asked for them (`Episode.final_picture`).
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


@runtime_checkable
class Simulator(Protocol):
    """n environments that step together. One object per slice of the pipeline."""

    spec: SimulatorSpec

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        """Start one episode in each environment; None parks it (its rows mean nothing and cost nothing)."""
        ...

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        """Execute a chunk, float32 [n, H, A]; render once, at its end.

        An environment whose episode ends starts `next_episodes[row]`, or is parked where that is None.

        Raises:
            NotFinite: the physics of an environment came to nothing; the engine adds which one of all it was.
        """
        ...

    def snapshot(self) -> dict[str, Array]:
        """Everything `restore` needs to continue bit for bit; arrays only."""
        ...

    def restore(self, state: dict[str, Array]) -> Observation:
        """Continue from a snapshot; returns the observation that was in hand when it was taken."""
        ...

    def close(self) -> None:
        """Release what the simulator holds."""
        ...


@runtime_checkable
class Timed(Simulator, Protocol):
    """A simulator that says how long its pictures take, so that a planner can tell them from physics."""

    render_seconds: float
    """Spent on pictures for observations since the simulator was built."""


@runtime_checkable
class Operated(Simulator, Protocol):
    """A simulator with a scripted operator: for demonstrations, `collect policy=expert` and `play policy=expert`."""

    num_envs: int

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """An operator for all environments: call the result for one control step's actions, float32 [n, A].

        Args:
            faulty: an operator with systematic faults, where the simulator has one.
        """
        ...


@runtime_checkable
class Rendered(Protocol):
    """A simulator that draws pictures for videos, in any size."""

    def render(self, row: int, width: int, height: int) -> Array:
        """uint8 [height, width, 3] of one environment."""
        ...
