"""ManiSkill's own batch of environments on one device; torch only, pictures are not copied to the host.

All rows are stepped together: a row that is parked, or that ended its episode within the chunk, is still stepped, and
its results are masked until its next episode begins.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, SimulatorSpec, Source, StepResult
from embodied_rl_sims.common import NoSnapshots, make_empty_result, wants_final_picture
from embodied_rl_sims.maniskill.observation_reader import ObservationReader, join_columns
from embodied_rl_sims.maniskill.settings import ManiSkillConfig
from embodied_rl_sims.maniskill.single import choose_scene, find_seed, read_instructions


class BatchedSimulator(NoSnapshots):
    """n environments in one `BaseEnv`; implements `embodied_rl.interfaces.sim.Simulator`, observations on its device.

    Args:
        config: settings of the simulator.
        spec: specification of the simulator.
        env: a `BaseEnv` of n environments with observation mode "none".
    """

    def __init__(self, config: ManiSkillConfig, spec: SimulatorSpec, env: Any) -> None:
        from embodied_rl_sims.maniskill.batch_reset import RowResetter  # imports torch

        self._resetter = RowResetter(env)
        self.config, self.spec, self.env, self.num_envs = config, spec, env, int(env.num_envs)
        self._reader = ObservationReader(env, config.observations)
        self._episode: list[Episode | None] = [None] * self.num_envs
        self._clock = np.zeros(self.num_envs, np.int64)
        self._rest = np.clip(np.zeros(spec.action_dim, np.float32), spec.action_low, spec.action_high).astype(
            np.float32
        )
        self.render_seconds = 0.0

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        self._begin(range(self.num_envs), episodes)
        return self._observe(np.arange(self.num_envs), pictures=True)

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        given: Any = actions
        given = given.cpu().numpy() if hasattr(given, "cpu") else given
        result = make_empty_result(self.spec, given)
        running = self._running()
        finals: list[tuple[Array, Observation]] = []
        asked = wants_final_picture(self._episode)
        for j in range(actions.shape[1]):
            if not running.any():
                break
            over = self._control_step(result, j, running)
            if len(over):
                shown = result.truncated[over] | asked[over]
                finals.append((over, self._observe(over, pictures=bool(shown.any()))))
            running[over] = False
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if finals:
            result.final_observation = self._in_order(finals, result.terminated & ~asked)
            self._begin(result.ended, next_episodes)
        result.observation = self._observe(np.arange(self.num_envs), pictures=True)
        return result

    def render(self, row: int, width: int, height: int) -> Array:
        """Draw one row for videos, uint8 [height, width, 3], by nearest pixels; black if it is parked."""
        if self._episode[row] is None:
            return np.zeros((height, width, 3), np.uint8)
        picture = self.env.render_rgb_array()[row].cpu().numpy()
        down = np.arange(height) * picture.shape[0] // height
        across = np.arange(width) * picture.shape[1] // width
        return np.ascontiguousarray(picture[down[:, None], across])

    def close(self) -> None:
        self.env.close()

    def _running(self) -> Array:
        return np.array([episode is not None for episode in self._episode])

    def _begin(self, rows: Sequence[int] | Array, episodes: Sequence[Episode | None]) -> None:
        """Reset rows together, each from its own seed."""
        for row in map(int, rows):
            self._episode[row], self._clock[row] = episodes[row], 0
        begun = {int(row): episode for row in rows if (episode := episodes[row]) is not None}
        for row, episode in begun.items():
            choose_scene(self.env, row, episode)
        self._resetter.begin(list(begun), [find_seed(episode) for episode in begun.values()])

    def _control_step(self, result: StepResult, j: int, running: Array) -> Array:
        """Step all rows and record the running ones; return the rows that ended their episode, int64 [m]."""
        actions = np.where(running[:, None], result.executed[:, j], self._rest)
        _, reward, _, _, info = self.env.step(self._on_device(actions))
        earned = reward.float().cpu().numpy()
        self._clock += running
        broken = np.flatnonzero(running & ~np.isfinite(earned))
        if len(broken):
            row = int(broken[0])
            raise NotFinite(f"the reward of control step {self._clock[row]} is {earned[row]}", row)
        success, fail = (
            (info[key].cpu().numpy().astype(bool) if key in info else np.zeros(self.num_envs, bool)) & running
            for key in ("success", "fail")
        )
        result.reward[running, j], result.success[:, j] = earned[running], success
        result.source[running, j] = Source.POLICY
        result.steps += running
        terminated = fail | (success & self.config.terminate_on_success)
        result.terminated |= terminated
        result.truncated |= running & ~terminated & (self._clock >= self.spec.horizon)
        return np.flatnonzero(running & (result.terminated | result.truncated))

    def _observe(self, rows: Array, pictures: bool) -> Observation:
        """Observe `rows`; parked rows are zero, and all pictures are black if `pictures` is False."""
        began = time.perf_counter()
        chosen, running = self._on_device(rows), self._on_device(self._running()[rows])
        known, hidden = (join_columns(part, self.num_envs)[chosen] for part in self._reader.state(self.env.get_info()))
        finite = known.isfinite().all(dim=1).cpu().numpy() | ~self._running()[rows]
        if not finite.all():
            row = int(rows[np.flatnonzero(~finite)[0]])
            raise NotFinite(f"the state is no longer finite after control step {self._clock[row]}", row)
        known, hidden = (part.where(running[:, None], 0) for part in (known, hidden))
        images = self._pictures(chosen, running, pictures and bool(self.spec.cameras))
        self.render_seconds += time.perf_counter() - began
        texts = read_instructions(self.env, self.config.task)
        instruction = tuple(texts[row] if self._episode[row] is not None else "" for row in rows)
        return Observation(images, known, instruction, hidden if self.spec.privileged_names else None)

    def _pictures(self, chosen: Any, running: Any, drawn: bool) -> dict[str, Any]:
        """Return copies of the pictures, because the package reuses their memory."""
        import torch

        if drawn:
            shown = self._reader.pictures()
            return {name: image[chosen] * running[:, None, None, None] for name, image in shown.items()}
        shapes = {camera.name: (len(chosen), camera.height, camera.width, 3) for camera in self.spec.cameras}
        return {name: torch.zeros(shape, dtype=torch.uint8, device=chosen.device) for name, shape in shapes.items()}

    def _in_order(self, finals: list[tuple[Array, Observation]], dark: Array) -> Observation:
        """Join rows that ended at several steps in one observation, ascending; `dark` rows get black pictures."""
        import torch

        rows = np.concatenate([each for each, _ in finals])
        order = np.argsort(rows)
        place, shown = self._on_device(order), self._on_device(~dark[rows[order]])

        def together(parts: list[Any]) -> Any:
            return torch.cat(parts)[place]

        ends = [end for _, end in finals]
        texts = [text for end in ends for text in end.instruction]
        images = {name: together([end.images[name] for end in ends]) for name in ends[0].images}
        return Observation(
            images={name: image * shown[:, None, None, None] for name, image in images.items()},
            state=together([end.state for end in ends]),
            instruction=tuple(texts[each] for each in order),
            privileged=together([end.privileged for end in ends]) if self.spec.privileged_names else None,
        )

    def _on_device(self, array: Array) -> Any:
        import torch

        return torch.as_tensor(np.ascontiguousarray(array), device=self.env.device)
