"""Settings of LIBERO. This module does not import LIBERO's package."""

from dataclasses import dataclass
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Code, Text

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")

HORIZONS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
"""Control steps after settling, a little more than the longest demonstration took: openvla-oft,
experiments/robot/libero/run_libero_eval.py, and openpi, examples/libero/main.py. LIBERO's own configuration
(libero/configs/eval/default.yaml) has 600 for every suite."""

CAMERAS = ("agentview", "robot0_eye_in_hand")


@dataclass(frozen=True)
class LiberoConfig:
    """Settings of LIBERO; the defaults are the protocol by which OpenVLA-OFT and openpi evaluate."""

    suite: Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"] = "libero_spatial"
    """libero_spatial, libero_object, libero_goal, libero_10 (also called LIBERO-Long) or libero_90."""
    image_size: int = 256
    """pixels on each side of a picture."""
    cameras: tuple[Text, ...] = CAMERAS
    """LIBERO's camera names; empty for the state only."""
    mirror: bool = True
    """give pictures as OpenVLA and openpi do, upright with left and right swapped: they rotate robosuite's bottom-up
    rows by 180°, as in the data of their checkpoints. False gives them as the camera sees."""
    assets: Code | None = None
    """LIBERO's assets folder; by default the one that LIBERO's config.yaml names, or the package's own."""
    rendering: Literal["official", "light"] = "official"
    """"official", or "light": no shadows, no reflections, no smoothed edges, coarser surfaces of robot and objects.
    Light pictures come several times as fast, and differ (physics do not): evaluate published policies with
    "official"."""
    renderer: Literal["egl", "osmesa"] = "egl"
    """the OpenGL backend, "egl" or "osmesa". A process can use only one."""
    horizon: int | None = None
    """control steps after settling, until an episode is truncated; by default the suite's."""
    settle: int = 10
    """control steps without motion at the start, while objects fall into place; no part of the episode. OpenVLA-OFT and
    openpi have 10 with the gripper opening; LIBERO's libero/lifelong/evaluate.py has 5."""
    terminate_on_success: bool = True
    """end an episode when its goal is reached; else run to the horizon."""
    control_freq: int = 20
    """control steps per simulated second."""
    keep: int = 4
    """scenes of tasks that no environment runs at present, kept built for the next episode of their task. Building one
    takes seconds; keeping it takes memory: 0.2 GB with coarse assets, several times that with LIBERO's."""

    def __post_init__(self) -> None:
        _check_choice("suite", self.suite, SUITES)
        _check_choice("rendering", self.rendering, ("official", "light"))
        _check_choice("renderer", self.renderer, ("egl", "osmesa"))
        least = {"image_size": 1, "horizon": 1, "settle": 0, "control_freq": 1, "keep": 0}
        for key, limit in least.items():
            value = getattr(self, key)
            if value is not None and value < limit:
                raise UserError(f"sim.{key}={value}: it must be at least {limit}.", code="value-out-of-range")
        if len(set(self.cameras)) < len(self.cameras):
            raise UserError(f"sim.cameras={list(self.cameras)}: a camera is named twice.", code="camera-twice")

    @property
    def episode_steps(self) -> int:
        return HORIZONS[self.suite] if self.horizon is None else self.horizon


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"sim.{key}={value}: it is one of {', '.join(choices)}.", code="choice-unknown")
