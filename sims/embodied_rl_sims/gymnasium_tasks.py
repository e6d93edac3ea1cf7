"""The tabletop as Gymnasium environments, for other libraries: importing this module registers them.

    import gymnasium
    import embodied_rl_sims.gymnasium_tasks

    environment = gymnasium.make("embodied_rl/Tabletop-v1", family="press", observations="state")
    environments = gymnasium.make_vec("embodied_rl/Tabletop-v1", num_envs=16)

Actions are in -1 … 1: the move of the commanded tool position along each axis, at most 3 cm, and the gripper's opening.
`observations="rgb"` gives {"image": uint8 [h, w, 3], "state": float32 [7], "task": the task's index};
`observations="state"` gives one vector, float32 [30], of the privileged state and the proprioception.
`info` has "instruction", "success" and, with `reward="progress"`, "progress".
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.settings import spec_of

ID = "embodied_rl/Tabletop-v1"
FAR = 100.0
"""Bound of states: metres, some multiplied by up to 14, of places in reach of the arm."""

_FIXED = {"progress", "goals", "inference_delay", "terminate_on_success"}
"""Settings of the tabletop that these environments set themselves, or have no meaning for."""


class TabletopVectorEnv(VectorEnv[Any, Any, Any]):
    """n tabletops that share one model. An episode that ends is followed by the next in the same step.

    As in Gymnasium's `AutoresetMode.SAME_STEP`, `info["final_obs"]` has the last observation of an episode that ended,
    and `info["final_info"]` its instruction, success and progress.

    Args:
        num_envs: n.
        family: which tasks are drawn: "push", "pick", "put" or "press"; None draws all.
        split: "train", or a held-out split of the tabletop.
        observations: "rgb", or "state", which holds the simulator's truth.
        reward: "success": 1 on the step that reaches the goal; "progress": the change of the task's progress in 0 … 1,
            which sums up to 1 when the goal is reached.
        render_mode: "rgb_array" or None.
        options: settings of the tabletop, such as `horizon` or `image_size`.

    Raises:
        UserError: a name or setting is unknown.
    """

    def __init__(
        self,
        num_envs: int = 1,
        family: str | None = None,
        split: str = "train",
        observations: Literal["rgb", "state"] = "rgb",
        reward: Literal["success", "progress"] = "success",
        render_mode: Literal["rgb_array"] | None = None,
        **options: Any,
    ) -> None:
        if unknown := set(options) - {field.name for field in fields(TabletopConfig)} | options.keys() & _FIXED:
            raise UserError(f"{ID} has no setting {', '.join(sorted(unknown))}.", code="key-unknown")
        for name, value, known in (
            ("observations", observations, ("rgb", "state")),
            ("reward", reward, ("success", "progress")),
            ("render_mode", render_mode, ("rgb_array", None)),
            ("family", family, (None, *(spec := spec_of(TabletopConfig())).families)),
            ("split", split, ("train", *spec.splits)),
            ("renderer", options.get("renderer", "raycast"), ("raycast", "egl")),
        ):
            if value not in known:
                raise UserError(f"{ID}: {name}={value} is none of {', '.join(map(str, known))}.", code="choice-unknown")
        if observations == "state":
            options = {"image_size": 1} | options  # the tabletop always casts a picture
        if num_envs < 1:
            raise UserError(f"{ID}: num_envs={num_envs} must be at least 1.", code="value-out-of-range")
        for name, value in options.items():
            kind = type(getattr(TabletopConfig(), name))
            if type(value) not in {float: (int, float), tuple: (tuple, list)}.get(kind, (kind,)) or value != value:
                message = f"{ID}: {name}={value!r} is not of the type {kind.__name__}."
                raise UserError(message, code="value-wrong-type")
        self._simulator = Tabletop(TabletopConfig(progress=reward == "progress", **options), num_envs)
        self.num_envs, self.render_mode, spec = num_envs, render_mode, self._simulator.spec
        self.metadata = {
            "render_modes": ["rgb_array"], "render_fps": spec.control_hz, "autoreset_mode": AutoresetMode.SAME_STEP,
        }  # fmt: skip
        self._tasks = [number for number, task in enumerate(spec.tasks) if family in (None, task.family)]
        self._split, self._state, self._reward = split, observations == "state", reward
        self._scale = np.array(spec.action_high, np.float32)
        self._episodes: list[Episode] = []
        self._began = 0
        self._progress = np.zeros(num_envs, np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (spec.action_dim,), np.float32)
        self.single_observation_space = self._make_observation_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in each environment; `seed` determines all episodes from here on.

        Raises:
            UserError: `options` has a `reset_mask`: environments begin their next episode in `step`.
        """
        if options and "reset_mask" in options:
            message = "environments are reset together, and begin their next episode in step: leave reset_mask out."
            raise UserError(f"{ID}: {message}", code="option-invalid")
        super().reset(seed=seed)
        self._episodes = [self._draw_episode() for _ in range(self.num_envs)]
        seen = self._simulator.reset(self._episodes)
        self._note_progress(seen, range(self.num_envs))
        return self._observe(seen, self._episodes), self._describe(seen, np.zeros(self.num_envs, bool))

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Run one control step; see the class for what happens when an episode ends."""
        following = [self._draw_episode() for _ in range(self.num_envs)]
        result, reward = self._run(actions, following)
        final: dict[str, Any] = {}
        if result.final_observation is not None:
            last = result.final_observation
            ended = [self._episodes[row] for row in result.ended]
            info = self._describe(last, result.success[result.ended, 0])
            final = self._gather_final(result.ended, self._observe(last, ended), info)
        for row in result.ended:
            self._episodes[row] = following[row]
        self._note_progress(result.observation.select(result.ended), result.ended)
        info = self._describe(result.observation, result.success[:, 0]) | final
        return self._observe(result.observation, self._episodes), reward, result.terminated, result.truncated, info

    def render(self) -> tuple[Array, ...] | None:
        """Return a picture uint8 [480, 480, 3] of each environment; None without `render_mode`."""
        if self.render_mode is None:
            return None
        return tuple(self._simulator.render(row, 480, 480) for row in range(self.num_envs))

    def close_extras(self, **_: Any) -> None:
        """Free the renderer."""
        self._simulator.close()

    def _run(self, actions: Any, following: Sequence[Episode | None]) -> tuple[StepResult, Array]:
        """Run one control step of actions [n, A]; return its result and rewards, float64 [n]."""
        if not self._episodes:
            raise UserError(f"{ID}: an episode must begin before a step: call reset.", code="reset-needed")
        given = np.asarray(actions, np.float32)
        if given.shape != self.action_space.shape:
            raise UserError(
                f"{ID}: actions have the shape {list(given.shape)}, not {list(self.action_space.shape or ())}.",
                code="action-shape",
            )
        if not np.isfinite(given).all():
            row = int(np.argmin(np.isfinite(given).all(axis=1)))
            raise UserError(f"{ID}: the action of environment {row} is not finite.", code="value-not-finite")
        result = self._simulator.step(given[:, None] * self._scale, following)
        if self._reward == "success":
            return result, result.reward[:, 0].astype(np.float64)
        assert result.observation.progress is not None
        reached = result.observation.progress.copy()
        if result.final_observation is not None:
            reached[result.ended] = result.final_observation.progress
        reward, self._progress = reached - self._progress, reached
        return result, reward.astype(np.float64)

    def _draw_episode(self) -> Episode:
        self._began += 1
        task = int(self.np_random.choice(self._tasks))
        seed = int(self.np_random.integers(2**60))
        return Episode(self._began - 1, task, seed, split=self._split, final_picture=not self._state)

    def _note_progress(self, seen: Observation, rows: Any) -> None:
        """Note the progress with which the episodes of some rows begin."""
        if self._reward == "progress" and len(rows):
            self._progress[list(rows)] = seen.progress

    def _make_observation_space(self) -> spaces.Space[Any]:
        spec = self._simulator.spec
        if self._state:
            return spaces.Box(-FAR, FAR, (len(spec.privileged_names) + len(spec.state_names),), np.float32)
        camera = spec.cameras[0]
        return spaces.Dict(
            {
                "image": spaces.Box(0, 255, (camera.height, camera.width, 3), np.uint8),
                "state": spaces.Box(-FAR, FAR, (len(spec.state_names),), np.float32),
                "task": spaces.Discrete(len(spec.tasks)),
            }
        )

    def _observe(self, seen: Observation, episodes: Sequence[Episode]) -> Any:
        if self._state:
            assert seen.privileged is not None
            return np.concatenate([seen.privileged, seen.state], axis=1)
        tasks = np.array([episode.task for episode in episodes], np.int64)
        return {"image": seen.images[self._simulator.spec.cameras[0].name], "state": seen.state, "task": tasks}

    def _describe(self, seen: Observation, success: Array) -> dict[str, Any]:
        info: dict[str, Any] = {"instruction": np.array(seen.instruction, object), "success": success}
        return info if seen.progress is None else info | {"progress": seen.progress}

    def _gather_final(self, ended: Array, observed: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Return `final_obs` and `final_info` as Gymnasium's own vector environments have them, with their masks."""
        mask = np.zeros(self.num_envs, bool)
        mask[ended] = True
        last = np.full(self.num_envs, None, object)
        for place, row in enumerate(ended):
            last[row] = {key: value[place] for key, value in observed.items()} if not self._state else observed[place]
        spread = {}
        for key, values in info.items():
            column = np.zeros(self.num_envs, values.dtype)
            column[ended] = values
            spread |= {key: column, f"_{key}": mask}
        return {"final_obs": last, "_final_obs": mask, "final_info": spread, "_final_info": mask}


class TabletopEnv(gymnasium.Env[Any, Array]):
    """One tabletop; its arguments are those of `TabletopVectorEnv`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12.5}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(self, **options: Any) -> None:
        self._one = TabletopVectorEnv(1, **options)
        self.render_mode = self._one.render_mode
        self.action_space, self.observation_space = self._one.single_action_space, self._one.single_observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the seed determines it and, without another seed, those that follow."""
        super().reset(seed=seed)
        seen, info = self._one.reset(seed=seed)
        return self._first(seen), self._first(info)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run one control step; after an episode's end `reset` must come first."""
        one = self._one
        result, reward = one._run(np.asarray(action)[None], [None])
        seen = result.observation if result.final_observation is None else result.final_observation
        info = self._first(one._describe(seen, result.success[:, 0]))
        observed = self._first(one._observe(seen, one._episodes))
        if result.final_observation is not None:
            one._episodes = []
        return observed, float(reward[0]), bool(result.terminated[0]), bool(result.truncated[0]), info

    def render(self) -> Array | None:
        """Return a picture uint8 [480, 480, 3], or None without `render_mode`."""
        drawn = self._one.render()
        return None if drawn is None else drawn[0]

    def close(self) -> None:
        """Free the renderer."""
        self._one.close()

    def _first(self, batched: Any) -> Any:
        if isinstance(batched, dict):
            return {key: self._first(value) for key, value in batched.items()}
        first = batched[0]
        return first.copy() if isinstance(first, np.ndarray) else first


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=TabletopEnv, vector_entry_point=TabletopVectorEnv)
