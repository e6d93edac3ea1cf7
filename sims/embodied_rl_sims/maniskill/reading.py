"""What an environment of ManiSkill shows, as named columns of one array.

Environments are made to observe nothing, so that a control step costs physics alone. Reading switches the package's
observation mode on for as long as it takes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

Columns = dict[str, Any]
"""Name of an entry → tensor [n, k]."""


class Reader:
    """Reads one `BaseEnv`.

    Args:
        env: made with observation mode "none".
        observations: "rgb" or "state", as `ManiSkillConfig.observations`.
    """

    def __init__(self, env: Any, observations: str) -> None:
        parse = import_module("mani_skill.envs.utils.observations").parse_obs_mode_to_struct
        self.env, self.has_pictures = env, observations == "rgb"
        self._modes = {mode: parse(mode) for mode in ("none", "rgb", "state_dict")}

    def state(self, info: dict[str, Any]) -> tuple[Columns, Columns]:
        """What a policy may know, and what only the simulator knows.

        Args:
            info: the package's, of the same moment.
        """
        truth = self._columns("state_dict", info)
        if not self.has_pictures:
            return truth, {}
        known = self._columns("rgb", info)
        return known, {name: value for name, value in truth.items() if name not in known}

    def pictures(self) -> dict[str, Any]:
        """Camera → uint8 tensor [n, h, w, 3]."""
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
    """The name of each entry of `join_columns(columns)`: "agent_qpos_0", "agent_qpos_1" …"""
    return tuple(
        f"{name}_{i}" if value.shape[1] > 1 else name for name, value in columns.items() for i in range(value.shape[1])
    )


def join_columns(columns: Columns, rows: int) -> Any:
    """float32 tensor [n, S], entries in the order of the benchmark's flat state."""
    import torch

    if not columns:
        return torch.zeros((rows, 0))
    return torch.cat(list(columns.values()), dim=1).float()


def _leaves(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Depth first, in the order of insertion: that of the package's `flatten_state_dict`."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}_")
        else:
            yield f"{prefix}{key}", value if value.ndim == 2 else value.reshape(len(value), -1)
