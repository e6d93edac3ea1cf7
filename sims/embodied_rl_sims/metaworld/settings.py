"""Settings of MetaWorld. This module does not import the package."""

import difflib
from dataclasses import dataclass
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Text
from embodied_rl_sims.metaworld.tasks import SUITES, TASKS

CAMERAS = ("corner", "corner2", "corner3", "corner4", "topview", "behindGripper", "gripperPOV")
GOALS = 50
"""Numbered goals of a task."""


@dataclass(frozen=True)
class MetaWorldConfig:
    """Settings of MetaWorld's simulator."""

    suite: Text = "mt50"
    """which tasks: mt10, mt25 or mt50; ml10_train, ml10_test, ml25_train, ml25_test, ml45_train or ml45_test."""
    tasks: tuple[Text, ...] = ()
    """tasks of one's own choice in place of the suite's, such as [reach, push]; one alone is MT1. Each task is
    then one family, in place of the difficulties."""
    goals_seed: int = 42
    """seed of the package's fifty goals of each task: `Episode.initial_state` k is
    `metaworld.MT1(task, seed=goals_seed).train_tasks[k]`; in ml suites, the task's k-th of the suite's own, such as
    `metaworld.ML45(seed=goals_seed).test_tasks`."""
    goal: Literal["auto", "visible", "hidden"] = "auto"
    """whether the observation holds the goal's position, else zeros; "auto": visible in mt suites and for tasks of
    one's own choice, hidden in ml suites. Pictures always show it, where the package draws it."""
    observations: Literal["rgb", "state"] = "rgb"
    """"rgb": pictures, and the hand's position and opening as the state, with the package's observation as privileged
    state; "state": the package's observation of 39 numbers as the state, and no picture."""
    cameras: tuple[Text, ...] = ("corner2",)
    """the package's cameras."""
    closer: bool = True
    """move the camera corner2 to (0.75, 0.075, 0.7) and turn its pictures by 180°, as LeRobot, RLinf and
    arXiv:2206.14244 do; false: as in the package, where it is farther away and upside down."""
    image_size: int = 128
    """pixels on each side of the cameras' pictures; LeRobot and RLinf draw 480."""
    rendering: Literal["official", "light"] = "official"
    """"official", or "light": no shadows, no reflections, no smoothed edges, coarser surfaces. Light pictures come many
    times as fast, and differ (physics do not): evaluate published policies with "official"."""
    renderer: Literal["egl", "osmesa"] = "egl"
    """the OpenGL backend, "egl" or "osmesa". A process can use only one."""
    reward: Literal["environment", "success", "progress"] = "environment"
    """of each control step: the package's own, from 0 to 10; 1 where the goal holds and 0 elsewhere; or that plus a
    tenth of the change of the package's reward since the control step before. Its sum over an episode depends on the
    first and the last step alone, so that an episode may end in success."""
    horizon: int = 500
    """control steps after which an episode is truncated; the package allows 500, RLinf's evaluation 100."""
    settle: int = 0
    """control steps with an action of zeros at the start, no part of the episode; RLinf has 16."""
    terminate_on_success: bool = True
    """end an episode when its goal is reached; else run to the horizon."""
    keep: int = 4
    """built tasks that no environment runs at present, kept for their next episode. Each needs some 0.03 GB, and
    a quarter of a second to build."""

    def __post_init__(self) -> None:
        choices = {
            "suite": tuple(SUITES), "goal": ("auto", "visible", "hidden"), "observations": ("rgb", "state"),
            "rendering": ("official", "light"), "renderer": ("egl", "osmesa"),
            "reward": ("environment", "success", "progress"),
        }  # fmt: skip
        for key, known in choices.items():
            if (value := getattr(self, key)) not in known:
                raise UserError(f"sim.{key}={value}: it is one of {', '.join(known)}.", code="choice-unknown")
        for name in self.tasks:
            if name not in TASKS:
                near = difflib.get_close_matches(name.removesuffix("-v3"), TASKS, 1, 0.5)
                hint = f" Did you mean {near[0]}?" if near else f" They are {', '.join(TASKS)}."
                raise UserError(f"sim.tasks: MetaWorld has no task '{name}'.{hint}", code="task-unknown")
        for name in self.cameras:
            if name not in CAMERAS:
                raise UserError(
                    f"sim.cameras: MetaWorld has no camera '{name}', but {', '.join(CAMERAS)}.", code="camera-unknown"
                )
        for key in ("tasks", "cameras"):
            if len(set(getattr(self, key))) < len(getattr(self, key)):
                raise UserError(f"sim.{key}={list(getattr(self, key))}: a name occurs twice.", code="name-twice")
        limits = {"image_size": (1, 4096), "horizon": (1, 500), "settle": (0, 400), "keep": (0, 1000)}
        for key, (low, high) in {**limits, "goals_seed": (0, 2**32 - 1)}.items():
            if not low <= getattr(self, key) <= high:
                raise UserError(
                    f"sim.{key}={getattr(self, key)}: it must lie between {low} and {high}.", code="value-out-of-range"
                )
        if self.horizon + self.settle > 500:
            raise UserError(
                f"sim.horizon={self.horizon} and sim.settle={self.settle}: the package runs 500 control steps at most.",
                code="value-out-of-range",
            )

    @property
    def chosen(self) -> tuple[str, ...]:
        """Return the names of the tasks."""
        return self.tasks or SUITES[self.suite]

    @property
    def draws_suite(self) -> bool:
        """Return whether numbered goals are those that the suite's class draws for all its tasks together."""
        return not self.tasks and self.suite.startswith("ml")

    @property
    def shows_goal(self) -> bool:
        """Return whether observations hold the goal's position."""
        if self.goal == "auto":
            return bool(self.tasks) or self.suite.startswith("mt")
        return self.goal == "visible"
