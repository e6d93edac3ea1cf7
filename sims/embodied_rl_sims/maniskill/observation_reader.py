"""Read a ManiSkill environment's observation as named columns of one array.

Environments have observation mode "none", so that a control step computes only physics. The reader switches the
package's observation mode on while it reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

Columns = dict[str, Any]
"""Name of an entry → tensor [n, k]."""


class ObservationReader:
    """A reader of one `BaseEnv`.

    Args:
        env: environment with observation mode "none".
        observations: "rgb" or "state", as `ManiSkillConfig.observations`.
    """

    def __init__(self, env: Any, observations: str) -> None:
        parse = import_module("mani_skill.envs.utils.observations").parse_obs_mode_to_struct
        self.env, self.has_pictures = env, observations == "rgb"
        self._modes = {mode: parse(mode) for mode in ("none", "rgb", "state_dict")}

    def state(self, info: dict[str, Any]) -> tuple[Columns, Columns]:
        """Read the policy's state and the privileged entries.

        Args:
            info: the package's `info` of the same moment.
        """
        truth = self._columns("state_dict", info)
        if not self.has_pictures:
            return truth, {}
        known = self._columns("rgb", info)
        return known, {name: value for name, value in truth.items() if name not in known}

    def pictures(self) -> dict[str, Any]:
        """Draw all cameras: name → uint8 tensor [n, h, w, 3]."""
        with self._mode("rgb"):
            shown = self.env._get_obs_sensor_data()
        return {name: textures["rgb"] for name, textures in shown.items() if "rgb" in textures}

    def _columns(self, mode: str, info: dict[str, Any]) -> Columns:
        with self._mode(mode):
            return dict(_leaves(self.env._get_obs_state_dict(info), ""))

    @contextmanager
    def _mode(self, mode: str) -> Iterator[None]:
        env = self.env
        env._obs_mode, env.obs_mode_struct = mode, self._modes[mode]
        try:
            yield
        finally:
            env._obs_mode, env.obs_mode_struct = "none", self._modes["none"]


def name_entries(columns: Columns) -> tuple[str, ...]:
    """Return the name of each entry of `join_columns(columns)`: "agent_qpos_0", "agent_qpos_1" …"""
    return tuple(
        f"{name}_{i}" if value.shape[1] > 1 else name for name, value in columns.items() for i in range(value.shape[1])
    )


def join_columns(columns: Columns, rows: int) -> Any:
    """Join columns to a float32 tensor [n, S], in the order of the benchmark's flat state."""
    import torch

    if not columns:
        return torch.zeros((rows, 0))
    return torch.cat(list(columns.values()), dim=1).float()


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield leaves depth first, in the order of insertion, which is the order of the package's `flatten_state_dict`."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}_")
        else:
            yield f"{prefix}{key}", value if value.ndim == 2 else value.reshape(len(value), -1)
