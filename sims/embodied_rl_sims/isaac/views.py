"""Observations of Isaac Lab's environments: tensors on their device, copied before the next step overwrites them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl_sims.isaac.settings import IsaacLabConfig

_POLICY, _CRITIC = "policy", "critic"


@dataclass
class ObservationTensors:
    """The observation of N environments.

    Attributes:
        state: float32 tensor [N, S].
        privileged: float32 tensor [N, P].
        images: camera → uint8 tensor [N, h, w, 3].
    """

    state: Any
    privileged: Any
    images: dict[str, Any]

    def observation(self, rows: Sequence[int] | Array, instruction: str) -> Observation:
        """Return the observation of some rows, on the host."""
        listed = np.asarray(rows, np.int64)
        images = {name: _host(image[listed]) for name, image in self.images.items()}
        words = (instruction,) * len(listed)
        return Observation(images, _host(self.state[listed]), words, _host(self.privileged[listed]))

    def keep(self, before: "ObservationTensors", kept: Any) -> "ObservationTensors":
        """Return these observations, replaced by those of `before` for the environments in `kept`, bool tensor [N]."""
        pairs = [(self.state, before.state), (self.privileged, before.privileged)]
        pairs += [(image, before.images[name]) for name, image in self.images.items()]
        for now, then in pairs:
            now[kept] = then[kept]
        return self


class ViewReader:
    """A reader of one environment's observations.

    The state consists of the group "policy"; the privileged state consists of the group "critic" if it exists,
    otherwise of all numbers of "policy".

    Args:
        config: settings of the simulator.
        environment: an Isaac Lab environment.
        observation: an observation of it: group → tensor [N, D], or term → tensor.

    Raises:
        UserError: a term or a camera does not exist.
    """

    def __init__(self, config: IsaacLabConfig, environment: Any, observation: Mapping[str, Any]) -> None:
        self._config, self._environment = config, environment
        self._truth = _CRITIC if _CRITIC in observation else _POLICY
        widths = _widths(environment, observation, _POLICY)
        chosen = tuple(widths) if config.state_terms is None else config.state_terms
        if unknown := [name for name in chosen if name not in widths]:
            raise UserError(
                f"sim.state_terms={unknown}: the group 'policy' of {config.id} has {', '.join(widths)}.",
                code="observation-entry-unknown",
            )
        starts = dict(zip(widths, np.cumsum([0, *widths.values()]).tolist(), strict=False))
        self._entries = [starts[name] + number for name in chosen for number in range(widths[name])]
        self.state_names = _names({name: widths[name] for name in chosen})
        self.privileged_names = _names(_widths(environment, observation, self._truth))
        if unknown := [name for name in config.cameras if name not in environment.scene.sensors]:
            raise UserError(
                f"sim.cameras={unknown}: the scene has {', '.join(environment.scene.sensors)}.", code="camera-unknown"
            )

    def read(self, observation: Mapping[str, Any]) -> ObservationTensors:
        """Copy the environment's present observation.

        Raises:
            UserError: a camera's picture does not have the configured size.
        """
        state = _flat(observation[_POLICY])[:, self._entries]
        images, size = {}, self._config.image_size
        for name in self._config.cameras:
            output = self._environment.scene.sensors[name].data.output
            picture = output["rgb" if "rgb" in output else "rgba"][..., :3]
            if (found := tuple(picture.shape[1:])) != (size, size, 3):
                raise UserError(
                    f"camera '{name}' gives pictures of {found}: sim.image_size={size} did not reach it.",
                    code="image-size-mismatch",
                )
            images[name] = picture.clone()
        return ObservationTensors(state, _flat(observation[self._truth]), images)


def _widths(environment: Any, observation: Mapping[str, Any], group: str) -> dict[str, int]:
    """Return term → count of its numbers, in the order of `_flat`."""
    values = observation[group]
    if isinstance(values, Mapping):
        return {name: prod(value.shape[1:]) for name, value in values.items() if _is_numbers(value)}
    manager = getattr(environment, "observation_manager", None)
    if manager is None:
        return {group: values.shape[1]}
    return dict(zip(manager.active_terms[group], map(prod, manager.group_obs_term_dim[group]), strict=True))


def _flat(values: Any) -> Any:
    """Concatenate the numbers of a group in a new tensor, float32 [N, D]."""
    torch = import_module("torch")
    if not isinstance(values, Mapping):
        return values.float().clone()
    return torch.cat([value.flatten(1).float() for value in values.values() if _is_numbers(value)], dim=1)


def _is_numbers(value: Any) -> bool:
    return value.ndim < 4  # a picture is [N, h, w, c]


def _names(widths: Mapping[str, int]) -> tuple[str, ...]:
    """Name the entries of terms. Quaternions are (w, x, y, z) in Isaac Lab."""
    names: list[str] = []
    for term, width in widths.items():
        axes = {3: "xyz" if "pos" in term else "", 4: "wxyz" if "quat" in term else ""}.get(width, "")
        names += [f"{term}_{axis}" for axis in axes or range(width)]
    return tuple(names)


def _host(tensor: Any) -> Array:
    return tensor.cpu().numpy()


@contextmanager
def restore_histories(manager: Any, running: Any) -> Iterator[None]:
    """Remove, after the `with` block, the entries added to the histories of running environments.

    Isaac Lab's `reset` of some environments observes all of them and appends to every history: running environments
    would get their present observation twice.

    Args:
        manager: Isaac Lab's observation manager; None if the environment is direct.
        running: bool tensor [N], the running environments.
    """
    before = [(each, each._buffer.clone(), each._num_pushes.clone()) for each in list_histories(manager)]
    yield
    for history, entries, pushes in before:
        # shifted by one in the ring buffer, because the pointer, which all environments share, has moved
        history._buffer[:, running] = entries.roll(1, dims=0)[:, running]
        history._num_pushes[running] = pushes[running]


def list_histories(manager: Any) -> list[Any]:
    """List the ring buffers [length, N, …] of a manager's terms."""
    groups = getattr(manager, "_group_obs_term_history_buffer", {}).values()
    return [history for terms in groups for history in terms.values() if history._buffer is not None]
