"""A simulator from one Isaac Lab environment with N environments that step together."""

import shutil
from collections.abc import Sequence
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
    find_versions,
    fold_seed,
    make_empty_result,
    resize_picture,
)
from embodied_rl_sims.isaac import app
from embodied_rl_sims.isaac.app import EXPERIMENTAL, is_licence_accepted
from embodied_rl_sims.isaac.settings import IsaacLabConfig
from embodied_rl_sims.isaac.views import ObservationTensors, ViewReader, restore_histories

PINS = {"isaacsim": "5.1.0.0", "isaaclab": "2.3.2.post1"}
"""Versions that the adapter was written for and that `embodied-rl sim install isaaclab` installs."""

_REMEDY = "embodied-rl sim install isaaclab"


def diagnose(config: IsaacLabConfig) -> list[Diagnosis]:
    """Check packages against pins, licence and driver; do not start the application."""
    return [
        Diagnosis("isaaclab adapter", "warn", "experimental", EXPERIMENTAL),
        *(diagnose_package(name, pinned, _REMEDY, "written against") for name, pinned in PINS.items()),
        Diagnosis("Omniverse licence", "ok", "accepted")
        if is_licence_accepted()
        else Diagnosis("Omniverse licence", "fail", "not accepted", "read it, and set OMNI_KIT_ACCEPT_EULA=YES"),
        Diagnosis("NVIDIA driver", "ok", "installed")
        if shutil.which("nvidia-smi")
        else Diagnosis("NVIDIA driver", "fail", "not found", "Isaac Sim needs an RTX GPU and its driver"),
    ]


def provenance(config: IsaacLabConfig) -> dict[str, str]:
    """Return package → version of the installed packages."""
    return find_versions(PINS)


_SEED_BITS = 31


def spec_of(config: IsaacLabConfig) -> SimulatorSpec:
    """Return the specification of an environment; start the application and build one environment for this.

    Raises:
        UserError: the environment, a camera or a term does not exist.
        Unavailable: see `app.launch_app`.
    """
    simulator = IsaacLab(config, 1)
    simulator.close()
    return simulator.spec


class IsaacLab(NoSnapshots):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`. Experimental.

    Isaac Lab resets an environment within the step that ends its episode, and then shows the next episode. So the final
    observation is the one before that step (`spec.final_observation` is "previous"). If the episode ends within a
    chunk, the episode that Isaac Lab begins is discarded at the chunk's end, and another one begins.

    All environments share one stream of random numbers, which `reset` seeds with its first episode: an episode does not
    depend on its own seed (`spec.seeded` is False) and cannot be repeated alone. A parked environment keeps running
    with zero actions, but is not observed.
    """

    Config = IsaacLabConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: IsaacLabConfig, num_envs: int) -> None:
        self.config, self.num_envs = config, num_envs
        app.launch_app(config)
        self._torch = import_module("torch")
        self._environment = app.make_environment(config, num_envs)
        observation, _ = self._environment.reset(seed=0)
        self._view_reader = ViewReader(config, self._environment, observation)
        dimensions = int(np.prod(self._environment.single_action_space.shape))
        self.spec = SimulatorSpec(
            cameras=tuple(Camera(name, config.image_size, config.image_size) for name in config.cameras),
            state_names=self._view_reader.state_names,
            action_names=tuple(f"action_{number}" for number in range(dimensions)),
            action_low=(-config.action_limit,) * dimensions,
            action_high=(config.action_limit,) * dimensions,
            control_hz=1 / float(self._environment.step_dt),
            horizon=int(self._environment.max_episode_length),
            tasks=(Task(config.id, config.id.rpartition("-v")[0] or config.id),),
            words=tuple(dict.fromkeys(make_instruction(config).split())),
            privileged_names=self._view_reader.privileged_names,
            final_observation="previous",
            seeded=False,
        )
        self._instruction = make_instruction(config)
        self._observed = self._view_reader.read(observation)
        self._running = np.zeros(num_envs, bool)

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        first = next((episode for episode in episodes if episode is not None), None)
        seed = None if first is None else fold_seed(first.seed, _SEED_BITS)
        observation, _ = self._environment.reset(seed=seed)
        self._observed = self._view_reader.read(observation)
        self._running = np.array([episode is not None for episode in episodes])
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result, running = make_empty_result(self.spec, actions), self._running.copy()
        finals: dict[int, ObservationTensors] = {}
        begun = np.zeros(self.num_envs, bool)  # environments that Isaac Lab reset in the last step
        for j in range(actions.shape[1]):
            if not running.any():
                break
            before = self._observed
            begun, over, late = self._control_step(result, j, running)
            finals |= {int(row): before for row in np.flatnonzero(over | late)}
            running &= ~over & ~late
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            result.final_observation = Observation.concatenate(
                [finals[row].observation([row], self._instruction) for row in result.ended.tolist()]
            )
            self._begin(result.ended[~begun[result.ended]])
            for row in result.ended:
                self._running[row] = next_episodes[row] is not None
        result.observation = self._observe()
        return result

    def render(self, row: int, width: int, height: int) -> Array:
        """Return the first camera's picture for videos, uint8 [height, width, 3]; black without a camera."""
        if not self.config.cameras:
            return np.zeros((height, width, 3), np.uint8)
        return resize_picture(self._observed.images[self.config.cameras[0]][row].cpu().numpy(), height, width)

    def close(self) -> None:
        """Close the environments; the application keeps running until the process ends, see `app.launch_app`."""
        self._environment.close()

    def _control_step(self, result: StepResult, j: int, running: Array) -> tuple[Array, Array, Array]:
        """Step all environments once.

        Returns:
            Three bool [n]: whether Isaac Lab reset it, whether it terminated, whether it reached its time limit.
        """
        asked = self._torch.from_numpy(np.where(running[:, None], result.executed[:, j], 0).astype(np.float32))
        given = self._environment.step(asked.to(self._environment.device))
        observation, reward, terminated, timed_out, extras = given
        self._observed = self._view_reader.read(observation)
        terminated, timed_out = terminated.cpu().numpy().astype(bool), timed_out.cpu().numpy().astype(bool)
        success = self._success(extras) & running
        over = (terminated | success) & running
        late = timed_out & running & ~over
        own = reward.cpu().numpy() if self.config.reward == "environment" else success
        if len(broken := np.flatnonzero(running & ~np.isfinite(own))):
            raise NotFinite(f"the reward of step {j + 1} of a chunk is {own[broken[0]]}", int(broken[0]))
        result.reward[running, j], result.success[:, j] = own[running], success
        result.source[running, j] = Source.POLICY
        result.steps += running
        result.terminated |= over
        result.truncated |= late
        return terminated | timed_out, over, late

    def _success(self, extras: dict[str, Any]) -> Array:
        """Return success, bool [n], from a termination term of the configured name, or else from an entry of `extras`.

        Raises:
            UserError: neither exists.
        """
        name = self.config.success
        if name is None:
            return np.zeros(self.num_envs, bool)
        manager = getattr(self._environment, "termination_manager", None)
        terms = [] if manager is None else manager.active_terms
        if manager is not None and name in terms:
            return manager.get_term(name).cpu().numpy().astype(bool)
        if getattr(extras.get(name), "shape", None) == (self.num_envs,):
            return extras[name].cpu().numpy().astype(bool)
        raise UserError(
            f"sim.success={name}: {self.config.id} has the termination terms {list(terms)} and `extras` with "
            f"{list(extras)}. Name one with one value an environment, or set sim.success=null.",
            code="success-entry-unknown",
        )

    def _begin(self, rows: Array) -> None:
        """Reset some environments and read their observations; the others keep their previous ones."""
        if not len(rows):
            return
        running = self._torch.ones(self.num_envs, dtype=self._torch.bool, device=self._environment.device)
        running[rows] = False
        environment, numbers = self._environment, self._torch.from_numpy(rows).to(self._environment.device)
        with restore_histories(getattr(environment, "observation_manager", None), running):
            if hasattr(environment, "observation_manager"):
                observation = environment.reset(env_ids=numbers)[0]
            else:  # a direct environment's public `reset` resets all; these are its steps for some
                environment._reset_idx(numbers)
                environment.scene.write_data_to_sim()
                environment.sim.forward()
                for _ in range(environment.cfg.num_rerenders_on_reset if self.config.cameras else 0):
                    environment.sim.render()
                observation = environment._get_observations()
        self._observed = self._view_reader.read(observation).keep(self._observed, running)

    def _observe(self) -> Observation:
        observation = self._observed.observation(range(self.num_envs), self._instruction)
        broken = np.flatnonzero(self._running & ~np.isfinite(observation.state).all(axis=1))
        if len(broken):
            raise NotFinite("the state is no longer finite", int(broken[0]))
        return observation


def make_instruction(config: IsaacLabConfig) -> str:
    """Derive an instruction from the id: "Isaac-Lift-Cube-Franka-v0" becomes "lift cube franka"."""
    if config.instruction is not None:
        return config.instruction
    name = config.id.removeprefix("Isaac-")
    return (name.rpartition("-v")[0] or name).replace("-", " ").lower()
