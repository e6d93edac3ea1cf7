"""The embedded simulator: a MuJoCo tabletop, seen by ray-cast cameras, driven by end-effector displacements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np

from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl_sims.tabletop import arm, operator
from embodied_rl_sims.tabletop.camera import RayCamera, View
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import FAMILIES, FIXTURES, KINDS, REST_HEIGHT, SPLITS, TASKS, WORDS, Layout, draw

SUBSTEPS = 10  # of 8 ms: 12.5 control steps a second
MOVE = 0.03  # metres a control step on each axis
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.28, -0.28, 0.02]), np.array([0.68, 0.28, 0.25])
LAG = 0.05  # how far the commanded point may run ahead of the tool
_OBJECTS = np.array([9, 16, 23])  # where the objects' free joints begin in qpos
_CAPS = slice(30, 32)
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_EPISODE_FIELDS = ("index", "task", "seed", "initial_state", "group", "split")


@dataclass(frozen=True)
class TabletopConfig:
    """Settings of the tabletop.

    Attributes:
        horizon: control steps after which an episode is truncated.
        image_size: pixels on each side of the camera's picture.
        renderer: "raycast" needs no OpenGL and is bit-reproducible; "egl" draws videos with OpenGL.
        randomise: vary colours and light within the training range.
        terminate_on_success: end an episode when its goal is reached; else run to the horizon.
        inference_delay: (least, most) control steps the arm holds still before each chunk, drawn once an episode.
        state_noise: standard deviation added to the state, in metres.
        image_noise: standard deviation added to pixels, in 0…255.
    """

    horizon: int = 50
    image_size: int = 64
    renderer: Literal["raycast", "egl"] = "raycast"
    randomise: bool = True
    terminate_on_success: bool = True
    inference_delay: tuple[int, int] = (0, 0)
    state_noise: float = 0.0
    image_noise: float = 0.0


def spec_of(config: TabletopConfig) -> SimulatorSpec:
    """The tabletop's specification, without building it."""
    others = [f"other{i}_{axis}" for i in range(2) for axis in "xy"]
    return SimulatorSpec(
        cameras=(Camera("front", config.image_size, config.image_size),),
        state_names=("tool_x", "tool_y", "tool_z", "gripper_width", "command_x", "command_y", "command_z"),
        action_names=("move_x", "move_y", "move_z", "gripper"),
        action_low=(-MOVE, -MOVE, -MOVE, -1.0),
        action_high=(MOVE, MOVE, MOVE, 1.0),
        control_hz=1 / (SUBSTEPS * 0.008),
        horizon=config.horizon,
        tasks=TASKS,
        words=WORDS,
        splits=SPLITS,
        privileged_names=(
            "tool_x", "tool_y", "tool_z", "gripper_width", "target_x", "target_y", "target_z",
            "to_target_x", "to_target_y", "to_target_z", "goal_x", "goal_y", "to_goal_x", "to_goal_y",
            *others, *(f"is_{family}" for family in FAMILIES), "clock",
        ),
        can_snapshot=True,
    )  # fmt: skip


class Tabletop:
    """n tabletops that share one model; implements `embodied_rl.interfaces.sim.Simulator`.

    Actions are displacements of the commanded tool position in metres and the gripper's opening in -1…1. The reward
    is 1 on the control step that reaches the goal. Lifting, placing or pressing the wrong thing ends the episode.
    """

    Config = TabletopConfig
    spec_of = staticmethod(spec_of)

    def __init__(self, config: TabletopConfig, num_envs: int) -> None:
        self.config, self.num_envs, self.spec = config, num_envs, spec_of(config)
        self.model = mujoco.MjModel.from_xml_path(str(Path(__file__).with_name("scene.xml")))
        self._camera = RayCamera(self.model, "front", config.image_size, config.image_size)
        self._data = [mujoco.MjData(self.model) for _ in range(num_envs)]
        tool = self.model.site("tool").id
        self._qpos = [data.qpos for data in self._data]
        self._ctrl = [data.ctrl for data in self._data]
        self._tool = [data.site_xpos[tool] for data in self._data]
        self._mocap = [int(self.model.body(name).mocapid[0]) for name in _fixture_names()]
        self._colours = np.repeat((self.model.geom_rgba[None, :, :3] * 255).astype(np.float32), num_envs, axis=0)
        self._tinted = [self.model.geom(name).id for name in (*(f"object{i}" for i in range(len(KINDS))), *_fixture_names())]
        self._episode: list[Episode | None] = [None] * num_envs
        self._layout: list[Layout | None] = [None] * num_envs
        self._view: list[View | None] = [None] * num_envs
        self._goals = Goals(num_envs)
        self._command = np.zeros((num_envs, 3))
        self._clock = np.zeros(num_envs, np.int64)
        self._delay = np.zeros(num_envs, np.int64)
        self._video: dict[tuple[int, int], mujoco.Renderer] = {}

    # -- the contract ---------------------------------------------------------------------------------------------

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._begin(row, episode)
        return self._observe(range(self.num_envs))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result = self._empty_result(actions)
        running = np.array([episode is not None for episode in self._episode])
        self._wait(running)
        for j in range(actions.shape[1]):
            if not running.any():
                break
            self._control_step(result.executed[:, j], running)
            success, failure = self._judge(running)
            over = failure | (success & self.config.terminate_on_success)
            late = running & ~over & (self._clock >= self.config.horizon)
            self._record(result, j, running, success, over, late)
            running &= ~over & ~late
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            result.final_observation = self._final(result)
            for row in result.ended:
                self._begin(int(row), next_episodes[row])
        result.observation = self._observe(range(self.num_envs))
        return result

    def snapshot(self) -> dict[str, Array]:
        physics = np.zeros((self.num_envs, mujoco.mj_stateSize(self.model, _STATE)))
        for row, data in enumerate(self._data):
            mujoco.mj_getState(self.model, data, physics[row], _STATE)
        return {
            "physics": physics,
            "command": self._command.copy(),
            "clock": self._clock.copy(),
            "episode": np.array([_pack(episode) for episode in self._episode]),
            "rewarded": self._goals.rewarded.copy(),
            "fixtures": np.stack([data.mocap_pos for data in self._data]),
        }

    def restore(self, state: dict[str, Array]) -> Observation:
        for row, packed in enumerate(state["episode"]):
            self._begin(row, _unpack(packed))
            mujoco.mj_setState(self.model, self._data[row], state["physics"][row], _STATE)
            self._data[row].mocap_pos[:] = state["fixtures"][row]
            self._goals.move(row, self._fixture_positions(row))
        self._command[:], self._clock[:] = state["command"], state["clock"]
        self._goals.rewarded[:] = state["rewarded"]
        return self._observe(range(self.num_envs))

    def close(self) -> None:
        for renderer in self._video.values():
            renderer.close()
        self._video.clear()

    # -- optional parts -------------------------------------------------------------------------------------------

    def render(self, row: int, width: int, height: int) -> Array:
        """uint8 [height, width, 3] of one environment, for videos."""
        mujoco.mj_kinematics(self.model, self._data[row])
        if self.config.renderer == "egl":
            return self._render_opengl(row, width, height)
        layout = self._layout[row]
        if layout is None:
            return np.zeros((height, width, 3), np.uint8)
        return RayCamera(self.model, "front", height, width).view(layout.look).render(self._data[row], self._colours[row])

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """An operator for all environments: call it for one control step's actions, float32 [n, A].

        The faulty one draws its faults from the episode's seed.
        """

        def actions() -> Array:
            moves = np.zeros((self.num_envs, self.spec.action_dim), np.float32)
            for row, episode in enumerate(self._episode):
                if episode is not None:
                    faults = operator.draw_faults(np.random.default_rng([episode.seed, 1])) if faulty else operator.Faults()
                    moves[row] = operator.act(self._scene(row), faults)
            return moves

        return actions

    # -- one control step -----------------------------------------------------------------------------------------

    def _control_step(self, action: Array, running: Array) -> None:
        tool = np.stack(self._tool)
        goal = np.clip(self._command + action[:, :3], WORKSPACE_LOW, WORKSPACE_HIGH)
        self._command = np.where(running[:, None], tool + np.clip(goal - tool, -LAG, LAG), self._command)
        self._command[:, 2] = np.maximum(self._command[:, 2], WORKSPACE_LOW[2])
        fingers = 0.02 * (action[:, 3:] + 1)
        control = np.concatenate([arm.inverse(self._command), fingers, fingers], axis=1)
        model = self.model
        for row in np.flatnonzero(running):
            self._ctrl[row][:] = control[row]
            mujoco.mj_step(model, self._data[row], SUBSTEPS)
        self._clock += running
        self._displace(running)

    def _wait(self, running: Array) -> None:
        """The arm holds still while the policy of a slow robot would think."""
        for _ in range(int(self._delay[running].max(initial=0))):
            for row in np.flatnonzero(running & (self._delay > 0)):
                mujoco.mj_step(self.model, self._data[row], SUBSTEPS)

    def _displace(self, running: Array) -> None:
        for row in np.flatnonzero(running & (self._clock == self._goals.displaced_at)):
            layout = self._layout[row]
            assert layout is not None and layout.displacement is not None
            shift = layout.displacement[1]
            if layout.family == "press":
                self._data[row].mocap_pos[self._mocap[layout.goal]][:2] += shift
                self._goals.move(int(row), self._fixture_positions(int(row)))
            elif self._qpos[row][_OBJECTS[layout.target] + 2] < REST_HEIGHT + 0.005:
                start = _OBJECTS[layout.target]
                self._qpos[row][start : start + 2] += shift

    def _judge(self, running: Array) -> tuple[Array, Array]:
        qpos = np.stack(self._qpos)
        objects = qpos[:, _OBJECTS[:, None] + np.arange(3)]
        success, failure = self._goals.judge(objects, qpos[:, _CAPS], qpos[:, 7] + qpos[:, 8])
        broken = running & ~np.isfinite(qpos).all(axis=1)
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            raise FloatingPointError(f"tabletop: physics of environment {row} left the numbers at control step {self._clock[row]} of {self._episode[row]}")
        return success & running, failure & running & ~success

    def _record(self, result: StepResult, j: int, running: Array, success: Array, over: Array, late: Array) -> None:
        fresh = success & ~self._goals.rewarded
        self._goals.rewarded |= fresh
        result.reward[:, j] = fresh
        result.success[:, j] = success
        result.source[running, j] = Source.POLICY
        result.steps += running
        result.terminated |= over & running
        result.truncated |= late

    # -- observations ---------------------------------------------------------------------------------------------

    def _observe(self, rows: Sequence[int], images: bool = True) -> Observation:
        size = self.config.image_size
        pictures = np.zeros((len(rows), size, size, 3), np.uint8)
        state = np.zeros((len(rows), len(self.spec.state_names)), np.float32)
        privileged = np.zeros((len(rows), len(self.spec.privileged_names)), np.float32)
        for i, row in enumerate(rows):
            view = self._view[row]
            if view is None:
                continue
            mujoco.mj_kinematics(self.model, self._data[row])
            if images:
                pictures[i] = view.render(self._data[row], self._colours[row])
            state[i] = self._state(row)
            privileged[i] = self._privileged(row)
        self._add_noise(rows, pictures, state)
        instruction = tuple(layout.instruction if (layout := self._layout[row]) else "" for row in rows)
        return Observation({"front": pictures}, state, instruction, privileged)

    def _final(self, result: StepResult) -> Observation:
        """The last observation of episodes that ended; pictures where a value is needed, so for truncations only."""
        final = self._observe(result.ended.tolist(), images=bool(result.truncated.any()))
        final.images["front"][~result.truncated[result.ended]] = 0
        return final

    def _state(self, row: int) -> Array:
        tool = self._tool[row]
        return np.array([*tool, self._qpos[row][7] + self._qpos[row][8], *(self._command[row] - tool)])

    def _privileged(self, row: int) -> Array:
        """Simulator truth in units of about one: positions from the table's middle in 12.5 cm, distances in 7 cm."""
        layout = self._layout[row]
        assert layout is not None
        scene = self._scene(row)
        middle = np.array([0.48, 0.0, 0.05])
        others = [i for i in range(len(KINDS)) if layout.family == "press" or i != layout.target][:2]
        other_xy = [self._qpos[row][_OBJECTS[i] :][:2] for i in others]
        return np.concatenate([
            (scene.tool - middle) * 8, [scene.width * 25 - 1], (scene.target - middle) * 8, (scene.target - scene.tool) * 14,
            (scene.goal - middle[:2]) * 8, (scene.goal - scene.target[:2]) * 10, *[(xy - middle[:2]) * 8 for xy in other_xy],
            [float(layout.family == family) for family in FAMILIES], [self._clock[row] / self.config.horizon],
        ])  # fmt: skip

    def _scene(self, row: int) -> operator.Scene:
        layout = self._layout[row]
        assert layout is not None
        if layout.family == "press":
            target = np.array([*self._goals.position[row], 0.035 + self._qpos[row][_CAPS][layout.target]])
        else:
            target = self._qpos[row][_OBJECTS[layout.target] :][:3].copy()
        goal = target[:2] if layout.goal < 0 else self._goals.position[row]
        width = float(self._qpos[row][7] + self._qpos[row][8])
        return operator.Scene(layout.family, self._tool[row].copy(), self._command[row].copy(), width, target, goal, MOVE)

    def _add_noise(self, rows: Sequence[int], pictures: Array, state: Array) -> None:
        if not (self.config.state_noise or self.config.image_noise):
            return
        for i, row in enumerate(rows):
            episode = self._episode[row]
            if episode is None:
                continue
            rng = np.random.default_rng([episode.seed, 2, int(self._clock[row])])
            state[i] += self.config.state_noise * rng.standard_normal(state.shape[1])
            noisy = pictures[i] + self.config.image_noise * rng.standard_normal(pictures[i].shape)
            pictures[i] = np.clip(noisy, 0, 255).astype(np.uint8)

    # -- episodes -------------------------------------------------------------------------------------------------

    def _begin(self, row: int, episode: Episode | None) -> None:
        self._episode[row] = episode
        if episode is None:
            self._layout[row] = self._view[row] = None
            return
        layout = draw(episode, self.config.randomise)
        self._layout[row] = layout
        self._view[row] = self._camera.view(layout.look)
        self._paint(row, layout)
        self._place(row, layout)
        self._goals.begin(row, layout, self._fixture_positions(row))
        self._command[row], self._clock[row] = layout.start, 0
        low, high = self.config.inference_delay
        self._delay[row] = np.random.default_rng([episode.seed, 3]).integers(low, high + 1)

    def _place(self, row: int, layout: Layout) -> None:
        data, qpos = self._data[row], self._qpos[row]
        mujoco.mj_resetData(self.model, data)
        for i, start in enumerate(_OBJECTS):
            half = layout.object_turns[i] / 2
            qpos[start : start + 7] = [*layout.objects[i], REST_HEIGHT, np.cos(half), 0, 0, np.sin(half)]
        for fixture, mocap in enumerate(self._mocap):
            if np.isfinite(layout.fixtures[fixture, 0]):
                data.mocap_pos[mocap] = [*layout.fixtures[fixture], 0.0]
        qpos[:7] = arm.inverse(layout.start[None])[0]
        qpos[7:9] = 0.04
        data.ctrl[:] = qpos[:9]
        mujoco.mj_kinematics(self.model, data)

    def _paint(self, row: int, layout: Layout) -> None:
        names = (*layout.object_colours, *layout.fixture_colours)
        for geometry, name in zip(self._tinted, names, strict=True):
            if name:
                self._colours[row, geometry] = np.array(layout.look.colours[name]) * 255

    def _fixture_positions(self, row: int) -> Array:
        return self._data[row].mocap_pos[self._mocap][:, :2]

    def _empty_result(self, actions: Array) -> StepResult:
        n, chunk, _ = actions.shape
        executed = np.clip(actions, self.spec.action_low, self.spec.action_high).astype(np.float32)
        return StepResult(
            reward=np.zeros((n, chunk), np.float32),
            success=np.zeros((n, chunk), bool),
            steps=np.zeros(n, np.int64),
            executed=executed,
            source=np.full((n, chunk), Source.HOLD, np.uint8),
            terminated=np.zeros(n, bool),
            truncated=np.zeros(n, bool),
            observation=Observation({}, np.zeros((0, 0)), ()),
        )

    def _render_opengl(self, row: int, width: int, height: int) -> Array:
        size = (height, width)
        if size not in self._video:
            self._video[size] = mujoco.Renderer(self.model, height, width)
        self.model.geom_rgba[:, :3] = self._colours[row] / 255
        mujoco.mj_forward(self.model, self._data[row])
        self._video[size].update_scene(self._data[row], camera="front")
        return self._video[size].render()


def _fixture_names() -> list[str]:
    return ["zone0", "zone1", *FIXTURES[2:4], "button0", "button1"]


def _pack(episode: Episode | None) -> list[int]:
    if episode is None:
        return [-1] * len(_EPISODE_FIELDS)
    state = -1 if episode.initial_state is None else episode.initial_state
    return [episode.index, episode.task, episode.seed, state, episode.group, ("train", *SPLITS).index(episode.split)]


def _unpack(packed: Array) -> Episode | None:
    index, task, seed, state, group, split = (int(value) for value in packed)
    if seed < 0:
        return None
    return Episode(index, task, seed, None if state < 0 else state, group, ("train", *SPLITS)[split])
