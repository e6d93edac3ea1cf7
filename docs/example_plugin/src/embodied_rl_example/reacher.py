"""A simulator of single environments: a point on a plane that has to reach the disc of the right colour. NumPy only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Episode, SimulatorSpec, Task
from embodied_rl_sims.rows import Rows, StepOutcome, View

COLOURS = {"red": (220, 40, 40), "blue": (40, 80, 230)}
SPEED = 0.1
"""Metres that an action of 1 moves the point in a control step."""
REACH = 0.12
"""Distance in metres at which a disc is reached."""


@dataclass(frozen=True)
class ReacherConfig:
    """Settings of the reacher."""

    horizon: int = 24
    """control steps after which an episode is truncated."""
    image_size: int = 32
    """height and width of the picture in pixels."""


class Plane:
    """One environment: two discs and a point, in a square from -1 m to 1 m."""

    def __init__(self, config: ReacherConfig) -> None:
        self.config = config
        self.instruction = ""

    def begin(self, episode: Episode) -> None:
        """Draw the start from the episode's seed, and from nothing else; its task says which disc is meant."""
        random = np.random.default_rng(episode.seed)
        side = random.choice([-1, 1])
        self.discs = random.uniform(0.4, 0.8, (2, 2)) * [[side, 1], [-side, 1]] * random.choice([-1, 1], (2, 1))
        self.position = random.uniform(-0.2, 0.2, 2)
        self.target = episode.task
        self.instruction = f"reach the {list(COLOURS)[episode.task]} disc"

    def step(self, action: Array) -> StepOutcome:
        """Move the point. Either disc ends the episode; the right one is the success."""
        self.position = np.clip(self.position + SPEED * action, -1, 1)
        reached = np.linalg.norm(self.discs - self.position, axis=1) < REACH
        success = bool(reached[self.target])
        return StepOutcome(reward=float(success), success=success, terminated=bool(reached.any()))

    def observe(self, pictures: bool) -> View:
        """Return the point's position, and the way to both discs as privileged state."""
        size = self.config.image_size
        way = (self.discs[[self.target, 1 - self.target]] - self.position).flatten()
        images = {"top": self.render(size, size)} if pictures else {}
        return View(self.position.astype(np.float32), images, way.astype(np.float32))

    def render(self, width: int, height: int) -> Array:
        """Draw both discs, and the point in white."""
        x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
        picture = np.full((height, width, 3), 30, np.uint8)
        shapes = [*zip(self.discs, COLOURS.values(), strict=True), (self.position, (255, 255, 255))]
        for (centre_x, centre_y), colour in shapes:
            picture[np.hypot(x - centre_x, y - centre_y) < REACH] = colour
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class Reacher(Rows):
    """n planes; implements `embodied_rl.interfaces.sim.Simulator`."""

    Config = ReacherConfig

    def __init__(self, config: ReacherConfig, num_envs: int) -> None:
        super().__init__(self.spec_of(config), num_envs, lambda row: Plane(config))

    @staticmethod
    def spec_of(config: ReacherConfig) -> SimulatorSpec:
        """Return what the engine needs to know, without building anything."""
        return SimulatorSpec(
            cameras=(Camera("top", config.image_size, config.image_size),),
            state_names=("x", "y"),
            action_names=("velocity_x", "velocity_y"),
            action_low=(-1.0, -1.0),
            action_high=(1.0, 1.0),
            control_hz=10.0,
            horizon=config.horizon,
            tasks=tuple(Task(colour, family="reach") for colour in COLOURS),
            words=("reach", "the", *COLOURS, "disc"),
            instruction_length=4,
            privileged_names=("target_x", "target_y", "other_x", "other_y"),
            hold=(0.0, 0.0),
        )

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return an operator that goes straight to the right disc; see `embodied_rl.interfaces.sim.Operated`.

        Raises:
            UserError: an operator with faults is requested.
        """
        if faulty:
            raise UserError("algo.operator=faulty: the reacher's operator has no faults; give careful.")

        def operate() -> Array:
            actions = np.zeros((self.num_envs, 2), np.float32)
            for row in range(self.num_envs):
                plane = self.environment(row)
                if self.episode(row) is not None and isinstance(plane, Plane):
                    actions[row] = (plane.discs[plane.target] - plane.position) / SPEED
            return np.clip(actions, -1, 1)

        return operate
