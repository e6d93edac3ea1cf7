"""A simulator from one Isaac Lab environment with N environments that step together."""

import shutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import (
    Array,
    Camera,
    Diagnosis,
    Episode,
    NotFinite,
    Observation,
    SimulatorSpec,
    Source,
    StepResult,
    Task,
)
from embodied_rl_sims.common import (
    NoSnapshots,
    diagnose_package,
    find_version,
    find_versions,
    fold_seed,
    make_empty_result,
    resize_picture,
)
from embodied_rl_sims.isaaclab.launch import EULA, is_licence_accepted, make_environment
from embodied_rl_sims.isaaclab.settings import TIME_OUT, IsaacLabConfig
from embodied_rl_sims.isaaclab.views import ObservationTensors, ViewReader

PINS = {"isaaclab": "3.0.0", "newton": "1.6.1", "warp-lang": "1.17.0"}
"""Versions that `embodied-rl sim install isaaclab` installs and that the adapter is tested with."""

_REMEDY = "embodied-rl sim install isaaclab"
_SEED_BITS = 31


def diagnose(config: IsaacLabConfig) -> list[Diagnosis]:
    """Check packages against pins, the GPU, and Isaac Sim, which is optional; start nothing."""
    sim = find_version("isaacsim")
    found = "not installed; needed only for PhysX and RTX pictures" if sim is None else sim
    consent = sim is None or is_licence_accepted()
    return [
        *(diagnose_package(name, pinned, _REMEDY) for name, pinned in PINS.items()),
        Diagnosis("NVIDIA driver", "ok", "installed" if shutil.which("nvidia-smi") else "not found: runs on the CPU"),
        Diagnosis("isaacsim", "ok", found)
        if consent
        else Diagnosis("isaacsim", "warn", f"{found}, licence not accepted", f"read it, and set {EULA}=YES"),
    ]


def provenance(config: IsaacLabConfig) -> dict[str, str]:
    """Return package → version of the installed packages."""
    return find_versions([*PINS, "torch", "isaacsim"])


def spec_of(config: IsaacLabConfig) -> SimulatorSpec:
    """Return the specification of an environment; build one for this.

    Raises:
        UserError: the environment, a camera or a term does not exist.
        Unavailable: see `launch.make_environment`.
    """
    simulator = IsaacLab(config, 1)
    simulator.close()
    return simulator.spec


class IsaacLab(NoSnapshots):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`.

    Isaac Lab resets an environment within the step that ends its episode, and returns the next one's beginning. The
    final observation is read before that reset. The episode that Isaac Lab begins is discarded at the chunk's end, and
    `next_episodes` begins. A parked environment keeps running with zero actions, but is not observed.

    With `seeded`, each episode is begun alone, after its seed was given to all random numbers. Otherwise environments
    share one stream, which `reset` seeds with its first episode: an episode does not depend on its own seed
    (`spec.seeded` is False) and cannot be repeated alone.
    """

    Config = IsaacLabConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: IsaacLabConfig, num_envs: int) -> None:
        self.config, self.num_envs = config, num_envs
        self._torch = import_module("torch")
        self._environment = make_environment(config, num_envs)
        try:
            self._environment.reset(seed=0)
            self._view_reader = ViewReader(config, self._environment)
            if config.seeded:
                check_seeded(self._environment, config)
        except Exception:
            self._environment.close()  # a process has one scene
            raise
        dimensions = int(np.prod(self._environment.single_action_space.shape))
        self._instruction = make_instruction(config)
        self.spec = SimulatorSpec(
            cameras=tuple(Camera(name, config.image_size, config.image_size) for name in config.cameras),
            state_names=self._view_reader.state_names,
            action_names=tuple(f"action_{number}" for number in range(dimensions)),
            action_low=(-config.action_limit,) * dimensions,
            action_high=(config.action_limit,) * dimensions,
            control_hz=1 / float(self._environment.step_dt),
            horizon=int(self._environment.max_episode_length),
            tasks=(Task(config.id, config.id),),
            words=tuple(dict.fromkeys(self._instruction.split())),
            privileged_names=self._view_reader.privileged_names,
            seeded=config.seeded,
        )
        self._final: ObservationTensors | None = None
        self._environment._reset_idx = self._read_before(self._environment._reset_idx)
        self._observed = self._view_reader.read(self._view_reader.compute())
        self._running = np.zeros(num_envs, bool)

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        self._running = np.array([episode is not None for episode in episodes])
        first = next((episode for episode in episodes if episode is not None), None)
        if first is not None:
            self._environment.seed(fold_seed(first.seed, _SEED_BITS))
        self._begin(episodes)
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result, running = make_empty_result(self.spec, actions), self._running.copy()
        finals: dict[int, ObservationTensors] = {}
        for j in range(actions.shape[1]):
            if not running.any():
                break
            over, late, final = self._control_step(result, j, running)
            if final is not None:
                finals |= dict.fromkeys(np.flatnonzero(over | late).tolist(), final)
            running &= ~over & ~late
        self._observed = self._view_reader.read(self._environment.obs_buf)
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            result.final_observation = Observation.concatenate(
                [finals[row].observation([row], self._instruction) for row in result.ended.tolist()]
            )
            following: list[Episode | None] = [None] * self.num_envs
            for row in result.ended.tolist():
                following[row] = next_episodes[row]
                self._running[row] = following[row] is not None
            self._begin(following)
        result.observation = self._observe()
        return result

    def render(self, row: int, width: int, height: int) -> Array:
        """Return the first camera's picture for videos, uint8 [height, width, 3]; black without a camera."""
        if not self.config.cameras:
            return np.zeros((height, width, 3), np.uint8)
        return resize_picture(self._observed.images[self.config.cameras[0]][row].cpu().numpy(), height, width)

    def close(self) -> None:
        """Close the environments; Isaac Sim, if it runs, keeps running until the process ends."""
        self._environment.close()

    def _control_step(
        self, result: StepResult, j: int, running: Array
    ) -> tuple[Array, Array, ObservationTensors | None]:
        """Step all environments once.

        Returns:
            Two bool [n], whether an episode terminated, or reached its time limit; and the final observation of those.
        """
        asked = self._torch.from_numpy(np.where(running[:, None], result.executed[:, j], 0).astype(np.float32))
        self._final = None
        given = self._environment.step(asked.to(self._environment.device))
        _, reward, terminated, timed_out, extras = given
        terminated, timed_out = terminated.cpu().numpy().astype(bool), timed_out.cpu().numpy().astype(bool)
        success = self._success(extras, timed_out & ~terminated) & running
        reached = success & (self.config.success != TIME_OUT)
        over = (terminated | reached) & running
        late = timed_out & running & ~over
        own = reward.cpu().numpy() if self.config.reward == "environment" else success
        if len(broken := np.flatnonzero(running & ~np.isfinite(own))):
            raise NotFinite(f"the reward of step {j + 1} of a chunk is {own[broken[0]]}", int(broken[0]))
        result.reward[running, j], result.success[:, j] = own[running], success
        result.source[running, j] = Source.POLICY
        result.steps += running
        result.terminated |= over
        result.truncated |= late
        final = self._final
        if (reached & ~terminated & ~timed_out).any():  # the environment runs on
            now = self._view_reader.read(self._environment.obs_buf)
            if final is not None:
                now.replace(self._tensor(terminated | timed_out), final)
            final = now
        return over, late, final

    def _read_before(self, reset: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return `reset`, Isaac Lab's own for some environments, which first reads their last observation."""

        def read_and_reset(env_ids: Any) -> None:
            self._final = self._view_reader.read(self._view_reader.compute())
            reset(env_ids)

        self._reset_rows = reset
        return read_and_reset

    def _success(self, extras: dict[str, Any], lasted: Array) -> Array:
        """Return success, bool [n], from a termination term of the configured name, or else from an entry of `extras`.

        Args:
            extras: of the step.
            lasted: bool [n], whether an episode reached its time limit.

        Raises:
            UserError: neither exists.
        """
        name = self.config.success
        if name is None:
            return np.zeros(self.num_envs, bool)
        if name == TIME_OUT:
            return lasted
        manager: Any = getattr(self._environment, "termination_manager", None)
        terms = [] if manager is None else manager.active_terms
        if manager is not None and name in terms:
            return manager.get_term(name).cpu().numpy().astype(bool)
        if getattr(extras.get(name), "shape", None) == (self.num_envs,):
            return extras[name].cpu().numpy().astype(bool)
        raise UserError(
            f"sim.success={name}: {self.config.id} has the termination terms {list(terms)} and `extras` with "
            f"{list(extras)}. Name one with one value an environment, '{TIME_OUT}', or set sim.success=null.",
            code="success-entry-unknown",
        )

    def _begin(self, episodes: Sequence[Episode | None]) -> None:
        """Begin the given episodes, and read their observations; other environments keep their previous ones."""
        rows = np.array([episode is not None for episode in episodes])
        if not rows.any():
            return
        environment, begun = self._environment, self._tensor(rows)
        numbers = begun.nonzero()[:, 0].int()
        if self.config.seeded:
            seeds = [fold_seed(episode.seed, _SEED_BITS) for episode in episodes if episode is not None]
            for number, seed in zip(numbers, seeds, strict=True):
                environment.seed(seed)
                self._reset_rows(number[None])
        else:
            self._reset_rows(numbers)
        environment.scene.write_data_to_sim()
        environment.sim.forward()
        for _ in range(environment.cfg.num_rerenders_on_reset if environment.has_rtx_sensors else 0):
            environment.sim.render()
        self._observed, before = self._view_reader.read(self._view_reader.compute(~begun)), self._observed
        self._observed.replace(~begun, before)

    def _tensor(self, rows: Array) -> Any:
        return self._torch.from_numpy(rows).to(self._environment.device)

    def _observe(self) -> Observation:
        observation = self._observed.observation(range(self.num_envs), self._instruction)
        broken = np.flatnonzero(self._running & ~np.isfinite(observation.state).all(axis=1))
        if len(broken):
            raise NotFinite("the state is no longer finite", int(broken[0]))
        return observation


def check_seeded(environment: Any, config: IsaacLabConfig) -> None:
    """Check that a task states no random numbers in mid-episode; what its own code draws is not seen.

    Raises:
        UserError: it states some.
    """
    own, length = environment.cfg, environment.max_episode_length_s
    found = [name for name in ("action_noise_model", "observation_noise_model") if getattr(own, name, None)]
    events = getattr(environment, "event_manager", None)
    found += [f"event {name}" for name in ({} if events is None else events.active_terms).get("interval", ())]
    commands = getattr(environment, "command_manager", None)
    times = {} if commands is None else {each: commands.get_term(each).cfg for each in commands.active_terms}
    found += [f"command {name}" for name, command in times.items() if command.resampling_time_range[0] < length]
    observations = getattr(environment, "observation_manager", None)
    for group, terms in ({} if observations is None else observations._group_obs_term_cfgs).items():
        found += [f"noise of observations {group}" for term in terms[:1] if any(each.noise for each in terms)]
    if found:
        message = f"sim.seeded=true: {config.id} draws random numbers in mid-episode: {', '.join(found)}."
        raise UserError(f"{message} Set sim.seeded=false, or leave these out by sim.options.", code="seeds-not-kept")


def make_instruction(config: IsaacLabConfig) -> str:
    """Derive an instruction from the id: "Isaac-Lift-Cube-Franka" becomes "lift cube franka"."""
    if config.instruction is not None:
        return config.instruction
    name = config.id.removeprefix("IsaacContrib-").removeprefix("Isaac-")
    return (name.rpartition("-v")[0] or name).replace("-", " ").lower()
