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
from embodied_rl_sims.isaaclab.settings import IsaacLabConfig

_POLICY, _CRITIC = "policy", "critic"


@dataclass
class ObservationTensors:
    """The observation of N environments, on the device of the simulation.

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

    def replace(self, rows: Any, other: "ObservationTensors") -> None:
        """Replace the environments in `rows`, bool tensor [N], by those of `other`."""
        pairs = [(self.state, other.state), (self.privileged, other.privileged)]
        pairs += [(image, other.images[name]) for name, image in self.images.items()]
        for mine, theirs in pairs:
            mine[rows] = theirs[rows]


class ViewReader:
    """A reader of one environment's observations.

    The state consists of the numbers of the group "policy", and is empty if that is a picture; the privileged state
    consists of the group "critic" if it exists, otherwise of all numbers of "policy".

    Args:
        config: settings of the simulator.
        environment: an Isaac Lab environment, after a reset.

    Raises:
        UserError: a term or a camera does not exist, or a term is delayed.
    """

    def __init__(self, config: IsaacLabConfig, environment: Any) -> None:
        self._config, self._environment = config, environment
        refuse_delays(getattr(environment, "observation_manager", None))
        observation = self.compute()
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

    def compute(self, kept: Any = None) -> Mapping[str, Any]:
        """Return the groups of observations as of now, with histories that include now.

        Args:
            kept: environments, bool tensor [N], whose histories stay as they were; None for all.
        """
        manager = getattr(self._environment, "observation_manager", None)
        if manager is None:
            return self._environment._compute_observations()
        with keep_histories(manager, kept):
            return manager.compute(update_history=True)

    def read(self, observation: Mapping[str, Any]) -> ObservationTensors:
        """Copy the groups of an observation of now; pictures are rendered now.

        Raises:
            UserError: a camera's picture does not have the configured size.
        """
        state = _flat(observation[_POLICY])[:, self._entries]
        images, size = {}, self._config.image_size
        for name in self._config.cameras:
            output = self._environment.scene.sensors[name].data.output
            picture = output["rgb" if "rgb" in output else "rgba"].torch[..., :3]
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
    if not _is_numbers(values):
        return {}
    if manager is None:
        return {group: values.shape[1]}
    return dict(zip(manager.active_terms[group], map(prod, manager.group_obs_term_dim[group]), strict=True))


def _flat(values: Any) -> Any:
    """Concatenate the numbers of a group in a new tensor, float32 [N, D]."""
    torch = import_module("torch")
    listed = list(values.values()) if isinstance(values, Mapping) else [values]
    numbers = [value.flatten(1).float() for value in listed if _is_numbers(value)]
    return torch.cat([*numbers, listed[0].new_zeros((len(listed[0]), 0), dtype=torch.float32)], dim=1)


def _is_numbers(value: Any) -> bool:
    return value.ndim < 4  # a picture is [N, h, w, c] or [N, c, h, w]


def _names(widths: Mapping[str, int]) -> tuple[str, ...]:
    """Name the entries of terms. Quaternions are (x, y, z, w) since Isaac Lab 3."""
    names: list[str] = []
    for term, width in widths.items():
        axes = {3: "xyz" if "pos" in term else "", 4: "xyzw" if "quat" in term else ""}.get(width, "")
        names += [f"{term}_{axis}" for axis in axes or range(width)]
    return tuple(names)


def _host(tensor: Any) -> Array:
    return tensor.cpu().numpy()


@contextmanager
def keep_histories(manager: Any, kept: Any = None) -> Iterator[None]:
    """Restore the histories of observations after the `with` block, as if nothing had been observed in it.

    Args:
        manager: Isaac Lab's observation manager.
        kept: environments, bool tensor [N], whose histories are restored; None for all.
    """
    buffers = [each for terms in manager._group_obs_term_history_buffer.values() for each in terms.values()]
    before = [(each, each._buffer.clone(), each._num_pushes.clone()) for each in buffers if each._buffer is not None]
    yield
    for buffer, entries, pushes in before:
        rows = slice(None) if kept is None else kept
        where = rows if buffer._stack_dim_internal is not None else (slice(None), rows)
        buffer._buffer[where] = entries[where]
        buffer._num_pushes[rows] = pushes[rows]
        buffer._need_reset = True  # so that environments without an entry are filled with their next one


def refuse_delays(manager: Any) -> None:
    """Check that no term of a manager, which may be None, is delayed; raise `UserError` otherwise."""
    delays = {} if manager is None else manager._group_obs_term_delay_buffer
    if names := [f"{group}.{name}" for group, terms in delays.items() for name in terms]:
        message = f"The observations {names} are delayed, which is not supported: set their delay_max_lag to 0."
        raise UserError(message, code="observation-delayed")
