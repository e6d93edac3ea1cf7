"""A stand-in for Isaac Lab: the members that the adapter uses, with Isaac Lab's own way of resetting environments.

As there: the episode that ends is reset within the step, what is returned is the next one's beginning, buffers are
overwritten by the next step, and a camera shows the episode before until something is drawn again.

As in Isaac Lab's pip package, `isaaclab` is a folder without the library, whose import puts two entries in
`sys.modules`: the module "isaaclab.app", which is empty, and "isaaclab.app.AppLauncher", which is the class.

A point on a line; its action moves it. It fails below -1, and succeeds above 1. `x` is the position, `clock` the
control steps of the episode, `start` where it began: drawn from the one stream of random numbers that all share.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

STEP = 0.2
LENGTH = 12
"""Control steps of an episode, unless it is told otherwise."""


class Manager:
    """The termination manager: what each term said in the last step, resets or not."""

    def __init__(self, names):
        self.active_terms, self.values = list(names), {}

    def get_term(self, name):
        return self.values[name]


class Environment:
    """What both kinds have in common."""

    concatenated = False

    def __init__(self, cfg):
        self.cfg, self.num_envs, self.device = cfg, cfg.scene.num_envs, torch.device("cpu")
        self.single_action_space = SimpleNamespace(shape=(1,), low=-float("inf"), high=float("inf"))
        self.step_dt = cfg.sim.dt * cfg.decimation
        self.max_episode_length = -int(-cfg.episode_length_s // self.step_dt)
        n, size = self.num_envs, cfg.scene.table_cam
        self.x, self.start = torch.zeros(n), torch.zeros(n)
        self.episode_length_buf = torch.zeros(n, dtype=torch.long)
        self.picture = torch.zeros(n, size.height, size.width, 4, dtype=torch.uint8)
        data = SimpleNamespace(output={"rgba": self.picture})
        self.scene = SimpleNamespace(sensors={"table_cam": SimpleNamespace(data=data)}, write_data_to_sim=lambda: None)
        self.sim = SimpleNamespace(forward=lambda: None, render=self._draw)
        self.buffer, self.extras, self.closed, self.resets = torch.zeros(n, 6), {"log": {}}, False, []

    def step(self, action):
        assert action.shape == (self.num_envs, 1) and action.dtype == torch.float32
        self.x += STEP * action[:, 0]
        self.episode_length_buf += 1
        self._draw()
        success, failure = self.x > 1, self.x < -1
        late = self.episode_length_buf >= self.max_episode_length
        self._say(success)
        terminated = failure | (success if self.ends_by_success else torch.zeros_like(success))
        reward = self.x.clone()
        over = (terminated | late).nonzero()[:, 0]
        if len(over):
            self._reset_idx(over)
            self._rerender()
        return self._get_observations(), reward, terminated, late, self.extras

    def close(self):
        self.closed = True

    def _reset_idx(self, rows):
        self.resets.append(rows.tolist())
        self.start[rows] = torch.rand(len(rows)) * 0.1
        self.x[rows] = self.start[rows]
        self.episode_length_buf[rows] = 0

    def _rerender(self):
        for _ in range(self.cfg.num_rerenders_on_reset):
            self._draw()

    def _draw(self):
        """The clock in the red channel."""
        self.picture[..., 0] = self.episode_length_buf[:, None, None].to(torch.uint8)

    def _get_observations(self):
        self.buffer[:, 0], self.buffer[:, 1], self.buffer[:, 2] = self.x, self.episode_length_buf, 1
        pose, quaternion = self.buffer[:, :2], self.buffer[:, 2:6]
        if self.concatenated:
            return {"policy": self.buffer}
        policy = {"pose": pose, "tool_quat": quaternion, "table_cam": self.picture}
        return {"policy": policy, "critic": self.start[:, None]}


class ManagerBased(Environment):
    """Success is a termination term."""

    ends_by_success = True

    def __init__(self, cfg):
        super().__init__(cfg)
        self.termination_manager = Manager(["time_out", "success"])
        self.observation_manager = SimpleNamespace(
            active_terms={"policy": ["pose", "tool_quat"], "critic": ["start"]},
            group_obs_term_dim={"policy": [(2,), (4,)], "critic": [(1,)]},
        )

    def reset(self, seed=None, env_ids=None, options=None):
        if seed is not None:
            torch.manual_seed(seed)
        self._reset_idx(torch.arange(self.num_envs) if env_ids is None else env_ids)
        self._rerender()
        return self._get_observations(), self.extras

    def _say(self, success):
        self.termination_manager.values = {"success": success, "time_out": torch.zeros_like(success)}


class Concatenated(ManagerBased):
    """Its group "policy" is one tensor, and there is no group "critic"."""

    concatenated = True


class Ring:
    """A history [length, N, d] in a ring whose pointer all environments share; the first entry fills it."""

    def __init__(self, length, num_envs):
        self._buffer, self._num_pushes, self._pointer = torch.zeros(length, num_envs, 1), torch.zeros(num_envs), -1

    @property
    def oldest_first(self):
        return self._buffer.roll(len(self._buffer) - 1 - self._pointer, dims=0)[..., 0].T

    def append(self, values):
        self._pointer = (self._pointer + 1) % len(self._buffer)
        self._buffer[self._pointer] = values[:, None]
        fresh = self._num_pushes == 0
        self._buffer[:, fresh] = values[fresh][:, None]
        self._num_pushes += 1

    def reset(self, rows):
        self._num_pushes[rows] = 0
        self._buffer[:, rows] = 0


class Remembering(ManagerBased):
    """Its group "policy" is the clock of the last three observations, the oldest first."""

    def __init__(self, cfg):
        super().__init__(cfg)
        self.ring = Ring(3, self.num_envs)
        terms, sizes, rings = {"policy": ["clock"]}, {"policy": [(3,)]}, {"policy": {"clock": self.ring}}
        self.observation_manager = SimpleNamespace(
            active_terms=terms, group_obs_term_dim=sizes, _group_obs_term_history_buffer=rings
        )

    def _reset_idx(self, rows):
        super()._reset_idx(rows)
        self.ring.reset(rows)

    def _get_observations(self):
        self.ring.append(self.episode_length_buf.float())
        return {"policy": self.ring.oldest_first}


class Direct(Environment):
    """Success is an entry of `extras`, and ends no episode; `reset` resets all."""

    ends_by_success = False

    def reset(self, seed=None, options=None):
        if seed is not None:
            torch.manual_seed(seed)
        self._reset_idx(torch.arange(self.num_envs))
        self._rerender()
        return self._get_observations(), self.extras

    def _say(self, success):
        self.extras["success"] = success


KINDS = {"Isaac-Point-v0": ManagerBased, "Isaac-Point-Flat-v0": Concatenated, "Isaac-Point-Direct-v0": Direct}
KINDS["Isaac-Point-History-v0"] = Remembering


class Launcher:
    """Counts the applications."""

    started: list[dict] = []  # noqa: RUF012

    def __init__(self, **settings):
        self.started.append(settings)
        self.app = SimpleNamespace(close=lambda: None)


def parse_env_cfg(id, device, num_envs):
    camera = SimpleNamespace(height=480, width=640, data_types=["rgba"])
    return SimpleNamespace(
        sim=SimpleNamespace(dt=0.01, device=device, render_interval=1),
        decimation=5,
        episode_length_s=(LENGTH - 0.5) * 0.05,
        num_rerenders_on_reset=0,
        scene=SimpleNamespace(num_envs=num_envs, table_cam=camera, env_spacing=2.5),
    )


def install(monkeypatch: pytest.MonkeyPatch) -> type[Launcher]:
    """Put it where `import` finds it."""
    names = ("isaaclab", "isaaclab.app", "isaaclab_tasks", "isaaclab_tasks.utils", "gymnasium")
    made: dict[str, Any] = {name: ModuleType(name) for name in names}
    made["isaaclab"].__spec__ = SimpleNamespace(name="isaaclab")
    made["isaaclab.app.AppLauncher"] = Launcher
    made["isaaclab_tasks.utils"].parse_env_cfg = parse_env_cfg
    made["gymnasium"].registry = KINDS
    made["gymnasium"].make = lambda id, cfg: SimpleNamespace(unwrapped=KINDS[id](cfg))
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(Launcher, "started", [])
    return Launcher
