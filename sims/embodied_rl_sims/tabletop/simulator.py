"""The embedded simulator: a MuJoCo tabletop with ray-cast cameras, controlled by end-effector displacements."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.goals import GoalWatch
from embodied_rl.interfaces.sim import Array, Episode, Observation, Source, StepResult
from embodied_rl_sims.common import make_empty_result, wants_final_picture
from embodied_rl_sims.tabletop import operator
from embodied_rl_sims.tabletop.all_goals import AllGoals
from embodied_rl_sims.tabletop.arm import follow_action
from embodied_rl_sims.tabletop.bodies import FIXTURES, OBJECTS, Bodies
from embodied_rl_sims.tabletop.camera import CameraView, RayCamera
from embodied_rl_sims.tabletop.chain import GoalChains, draw_chain
from embodied_rl_sims.tabletop.goals import Goals
from embodied_rl_sims.tabletop.layout import Layout, pack_episode, unpack_episode
from embodied_rl_sims.tabletop.observation import Privileged, Truth, add_noise
from embodied_rl_sims.tabletop.progress import ProgressMeter
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from embodied_rl_sims.tabletop.video import VideoRenderer

_CAMERA = "front"
_FAULT_STREAM, _DELAY_STREAM = 1, 1003


class Tabletop:
    """n tabletops that share one model; implements `embodied_rl.interfaces.sim.Simulator`.

    Actions are displacements of the commanded tool position in metres and the gripper's opening in -1…1. The reward is
    1 on the control step that reaches the goal, the last one where there are several. Lifting, placing or pressing the
    wrong thing ends the episode. The final picture of an episode that terminated is black, because learning does not
    use it, unless the episode requests it (`Episode.final_picture`).
    """

    Config = TabletopConfig
    spec_of = staticmethod(spec_of)
    servo: str | None = "embodied_rl_sims.tabletop.servo:TabletopServo"  # see `embodied_rl.interfaces.servo`

    def __init__(self, config: TabletopConfig, num_envs: int) -> None:
        self.config, self.num_envs, self.spec = config, num_envs, self.spec_of(config)
        self._bodies = self._build_bodies()
        self._goals, self._privileged = Goals(num_envs), Privileged(num_envs)
        self._chains = GoalChains(num_envs, config.goals)
        self._progress = ProgressMeter(num_envs) if config.progress else None
        self._watch: AllGoals | None = None
        model = self._bodies.model
        self._camera = RayCamera(model, _CAMERA, config.image_size, config.image_size)
        self._colours = np.repeat((model.geom_rgba[None, :, :3] * 255).astype(np.float32), num_envs, axis=0)
        self._episode: list[Episode | None] = [None] * num_envs
        self._layout: list[Layout | None] = [None] * num_envs
        self._view: list[CameraView | None] = [None] * num_envs
        self._command = np.zeros((num_envs, 3))
        self._clock, self._delay = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self._video = VideoRenderer(model, _CAMERA, config.renderer)
        self.render_seconds = 0.0

    # -- the contract ---------------------------------------------------------------------------------------------

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._begin(row, episode)
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result = self._run(actions, self._running())
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            wanted = result.truncated | wants_final_picture(self._episode)
            result.final_observation = self._observe(result.ended, wanted)
            result.failures = self._explain_failures(result)
            for row in result.ended:
                self._begin(int(row), next_episodes[row])
        result.observation = self._observe()
        return result

    def snapshot(self) -> dict[str, Array]:
        progress = {} if self._progress is None else {"progress": self._progress.start.copy()}
        watched = {} if self._watch is None else {"goals": self._watch.progress.start.copy()}
        chained = {} if self.config.goals == 1 else {**self._chains.save(), "excused": self._goals.excused.copy()}
        return {
            **progress,
            **watched,
            **chained,
            "physics": self._bodies.save(),
            "command": self._command.copy(),
            "clock": self._clock.copy(),
            "episode": np.array([pack_episode(episode) for episode in self._episode]),
            "rewarded": self._goals.rewarded.copy(),
            "raised": self._goals.raised.copy(),
        }

    def restore(self, state: dict[str, Array]) -> Observation:
        for row, packed in enumerate(state["episode"]):
            self._begin(row, unpack_episode(packed))
        self._bodies.load(state["physics"])
        for row in self._chains.load(state) if self.config.goals > 1 else ():
            self._set_goal(row, self._chains.present(row))
        for row in range(self.num_envs):
            self._goals.move(row, self._bodies.fixtures(row))
        self._command[:], self._clock[:] = state["command"], state["clock"]
        self._goals.rewarded[:] = state["rewarded"]
        self._goals.raised[:] = state.get("raised", False)  # snapshots of earlier versions lack it
        self._goals.excused[:] = state["excused"] if self.config.goals > 1 else False
        if self._progress is not None:
            self._progress.restore(state["progress"])
        if self._watch is not None:
            self._watch.progress.restore(state["goals"])
        return self._observe()

    def close(self) -> None:
        self._video.close()

    # -- optional parts -------------------------------------------------------------------------------------------

    def render(self, row: int, width: int, height: int) -> Array:
        """Return a picture uint8 [height, width, 3] of one environment for videos; black if it is parked.

        Raises:
            RuntimeError: the renderer is "egl", and EGL is not available.
        """
        layout = self._layout[row]
        look = None if layout is None else layout.look
        return self._video.draw(self._bodies.scene(row), look, self._colours[row], (height, width))

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return an operator for all environments; each call of it gives one control step's actions, float32 [n, A].

        The faulty operator draws its faults from the episode's seed.
        """

        def actions() -> Array:
            moves = np.where(self._chains.is_rising(self._clock)[:, None], operator.RISE, 0).astype(np.float32)
            self._bodies.gather()
            truth = Truth.from_bodies(self._bodies, self._goals, self._command)
            for row, (episode, layout) in enumerate(zip(self._episode, self._layout, strict=True)):
                if not moves[row].any() and episode is not None and layout is not None:
                    rng = np.random.default_rng([episode.seed, _FAULT_STREAM])
                    faults = operator.draw_faults(rng) if faulty else operator.Faults()
                    moves[row] = operator.choose_action(truth.scene(row, layout.family), faults)
            return moves

        return actions

    def watch_goals(self) -> GoalWatch:
        """Track every goal that a scene allows, from the next reset on; see `embodied_rl.interfaces.goals`.

        Raises:
            UserError: episodes have several goals, so that the present goal changes.
        """
        if self.config.goals > 1:
            raise UserError(
                f"sim.goals={self.config.goals}: observing all goals of a scene needs sim.goals=1.",
                code="keys-contradict",
            )
        self._watch = AllGoals(self.num_envs)
        return self._watch

    def bare_loop(self, actions: Array) -> Callable[[], None]:
        """Return a function that runs only the MuJoCo calls of `actions` [chunks, n, H, A], always from this state.

        The simulator's state does not change.
        """
        views = [(view.pose.origin, view.pose.rays.reshape(-1)) for view in self._view if view is not None]
        return self._bodies.bare_loop(views, self._controls_of(actions))

    def _controls_of(self, actions: Array) -> Array:
        """Compute joint commands [chunks, H, n, 9] of `actions` from the present state, which does not change."""
        before, controls = self.snapshot(), []
        for chunk in actions:
            for j in range(chunk.shape[1]):
                self.step(chunk[:, j : j + 1], self._episode)
                controls.append(self._bodies.control)
        self.restore(before)
        chunks, n, steps, _ = actions.shape
        return np.reshape(controls, (chunks, steps, n, -1))

    # -- parts that another physics engine replaces -------------------------------------------------------------------

    def _build_bodies(self) -> Bodies:
        return Bodies(self.num_envs)

    def _draw(self, rows: Array, pictures: Array) -> None:
        """Draw some environments with updated body positions into uint8 [n, size, size, 3]."""
        for row in rows:
            view = self._view[row]
            assert view is not None
            pictures[row] = view.render(self._bodies.data[row], self._colours[row])

    # -- one control step -----------------------------------------------------------------------------------------

    def _run(self, actions: Array, running: Array) -> StepResult:
        """Execute a chunk in the environments of `running` (bool [n]); the result lacks what follows its last step."""
        result, waited = make_empty_result(self.spec, actions), 0
        while len(rows := np.flatnonzero(running & (self._delay > waited))):
            self._bodies.advance(rows)
            self._bodies.gather()
            waited += 1
        for j in range(actions.shape[1]):
            if not running.any():
                break
            self._command, control = follow_action(self._command, self._bodies.tool, result.executed[:, j], running)
            self._bodies.advance(np.flatnonzero(running), control)
            self._count_step(running)
            running &= ~self._end_step(result, j, running)
        return result

    def _replay(self, row: int, history: Array) -> None:
        """Execute the chunks of an episode's history [d, H, A] in one environment.

        Raises:
            RuntimeError: the episode ended in it.
        """
        alone = np.arange(self.num_envs) == row
        self._observe(np.array([row]), np.zeros(self.num_envs, bool))  # what is read at the start of an episode
        for chunk in history:
            result = self._run(np.where(alone[:, None, None], chunk, np.float32(0)), alone.copy())
            if result.terminated[row] or result.truncated[row]:
                raise RuntimeError(f"the history of an episode in environment {row} leads beyond its end")

    def _running(self) -> Array:
        return np.array([episode is not None for episode in self._episode])

    def _count_step(self, running: Array) -> None:
        self._clock += running
        for row in np.flatnonzero(running & (self._clock == self._goals.displaced_at)).tolist():
            layout = self._layout[row]
            assert layout is not None and layout.displacement is not None
            shift = layout.displacement[1]
            if layout.family == "press":
                self._bodies.shift_fixture(row, layout.goal, shift)
                self._goals.move(row, self._bodies.fixtures(row))
                if self._watch is not None:
                    self._watch.move(row, self._bodies.fixtures(row))
            else:
                self._bodies.shift_object(row, layout.target, shift)
        self._bodies.gather()

    def _end_step(self, result: StepResult, j: int, running: Array) -> Array:
        """Judge and record a finished control step; return bool [n], whether it ended the episode."""
        bodies = self._bodies
        bodies.check_finite(running, self._clock)
        success, failure = self._goals.judge(bodies.objects, bodies.caps, bodies.width)
        last = self._chains.is_last_goal
        if len(reached := np.flatnonzero(success & running & ~last)):  # the next goals begin; no body moves
            for row in reached.tolist():
                self._set_goal(row, self._chains.advance(row, int(self._clock[row])))
                self._goals.excuse(row, bodies.objects, bodies.caps, bodies.width)
            if self._progress is not None:
                self._progress.measure(Truth.from_bodies(bodies, self._goals, self._command), ~self._running())
        success, failure = success & running & last, failure & running & ~success
        over = failure | (success & self.config.terminate_on_success)
        late = running & ~over & (self._clock >= self.config.horizon)
        fresh = success & ~self._goals.rewarded
        self._goals.rewarded |= fresh
        result.reward[:, j] = fresh
        result.success[:, j] = success
        result.source[running, j] = Source.POLICY
        result.steps += running
        result.terminated |= over & running
        result.truncated |= late
        return over | late

    def _explain_failures(self, result: StepResult) -> tuple[str, ...]:
        objects, caps = self._bodies.objects, self._bodies.caps
        places = self._goals.targets(objects, caps)
        explain = self._goals.explain_failure
        found = {row: explain(row, places[row], bool(result.terminated[row])) for row in result.ended.tolist()}
        return tuple(self._chains.name_stage(row, failure) for row, failure in found.items())

    # -- observations ---------------------------------------------------------------------------------------------

    def _observe(self, rows: Array | None = None, drawn: Array | None = None) -> Observation:
        """Observe `rows`, by default all; only rows in `drawn` (bool [n]) get their picture."""
        running = self._running()
        ended, rows = rows, np.arange(self.num_envs) if rows is None else rows
        shown = rows[running[rows]]
        self._bodies.settle(shown)
        self._bodies.gather()
        truth = Truth.from_bodies(self._bodies, self._goals, self._command)
        if self._watch is not None:
            self._watch.measure(self._bodies, ended)
        state = np.where(running[:, None], truth.state(), 0).astype(np.float32)
        privileged = self._privileged.of(truth, self._clock / self.config.horizon)
        if self.config.goals > 1:
            privileged = np.column_stack([privileged, self._chains.overall_progress(np.zeros(self.num_envs))])
        privileged = np.where(running[:, None], privileged, 0).astype(np.float32)
        pictures = np.zeros((self.num_envs, *[self.config.image_size] * 2, 3), np.uint8)
        began = time.perf_counter()
        self._draw(shown if drawn is None else shown[drawn[shown]], pictures)
        self.render_seconds += time.perf_counter() - began
        noise = self.config.state_noise, self.config.image_noise
        for row in shown if any(noise) else ():
            episode = self._episode[row]
            assert episode is not None
            picture = pictures[row] if drawn is None or drawn[row] else None
            add_noise(episode, int(self._clock[row]), state[row], picture, *noise)
        instruction = tuple(layout.instruction if (layout := self._layout[row]) else "" for row in rows)
        progress = None if self._progress is None else self._measure_progress(truth)[rows]
        return Observation({_CAMERA: pictures[rows]}, state[rows], instruction, privileged[rows], progress)

    def _measure_progress(self, truth: Truth) -> Array:
        assert self._progress is not None
        success, _ = self._goals.judge(self._bodies.objects, self._bodies.caps, self._bodies.width)
        return self._chains.overall_progress(self._progress.measure(truth, success)).astype(np.float32)

    # -- episodes -------------------------------------------------------------------------------------------------

    def _begin(self, row: int, episode: Episode | None) -> None:
        self._episode[row] = episode
        if episode is None:
            self._layout[row] = self._view[row] = None
            self._chains.park(row)
            if self._watch is not None:
                self._watch.park(row)
            return
        layout = self._chains.begin(row, draw_chain(episode, self.config.randomise, self.config.goals))
        self._view[row] = self._camera.view(layout.look)
        names = (*layout.object_colours, *layout.fixture_colours)
        for geometry, name in zip((*OBJECTS, *FIXTURES), names, strict=True):
            if name:
                self._colours[row][self._bodies.model.geom(geometry).id] = np.array(layout.look.colours[name]) * 255
        self._bodies.place(row, layout)
        self._set_goal(row, layout)
        if self._watch is not None:
            self._watch.begin(row, layout, self._bodies.fixtures(row))
        self._command[row], self._clock[row] = layout.start, 0
        low, high = self.config.inference_delay
        self._delay[row] = np.random.default_rng([episode.seed, _DELAY_STREAM]).integers(low, high + 1)
        if episode.history is not None:
            self._replay(row, episode.history)

    def _set_goal(self, row: int, layout: Layout) -> None:
        """Set a row's goal in the present scene."""
        self._layout[row] = layout
        self._goals.begin(row, layout, self._bodies.fixtures(row))
        self._privileged.begin(row, layout)
        if self._progress is not None:
            self._progress.begin(row, layout.family)
