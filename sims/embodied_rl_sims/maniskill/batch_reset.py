"""Begin many rows of one ManiSkill batch at once, each from its own seed.

The package seeds a batch by its first row, and for each reset makes two generators for every environment it has. Here
one reset serves all rows, and what a task draws for n rows is drawn row by row from generators of their own: each row
gets the numbers that the package's loop of a single environment on the processor draws for the same seed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from embodied_rl.interfaces.sim import Array

_FEW = 16
"""Fewer rows begin one after another: a shape as (3, 2) would not tell whether it is of 3 rows."""
_FACTORIES = (torch.rand, torch.randn, torch.randint)
_DECISIONS = (torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.nonzero, torch.nonzero)


class NotByRowError(Exception):
    """A task draws in a way that cannot be told apart by rows."""


class RowStarter:
    """Resets rows of one environment.

    Args:
        env: a `BaseEnv` with observation mode "none".
    """

    def __init__(self, env: Any) -> None:
        self._env, self._together = env, True
        self._generators = [torch.Generator() for _ in range(env.num_envs)]

    def begin(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Reset `rows`; row `rows[i]` begins from `seeds[i]`."""
        if not rows:
            return
        env, chosen = self._env, torch.tensor(rows, device=self._env.device)
        if env.reconfiguration_freq:  # the scene itself is drawn from the seed
            for i, seed in enumerate(seeds):
                env.reset(seed=[seed] * env.num_envs, options={"env_idx": chosen[i : i + 1]})
            return
        env._episode_seed[list(rows)] = seeds
        with self._initialized_by(self._initialize):
            env.reset(options={"env_idx": chosen})

    @contextmanager
    def _initialized_by(self, initialize: Callable[[Any, dict[str, Any]], None]) -> Iterator[None]:
        """Replace the task's `_initialize_episode`, as an attribute of the environment that hides its class's."""
        self._env._initialize_episode = initialize
        try:
            yield
        finally:
            del self._env._initialize_episode
            self._env._episode_rng = self._env._batched_episode_rng.rngs[0]

    def _initialize(self, chosen: Any, options: dict[str, Any]) -> None:
        if len(chosen) >= _FEW and self._together:
            # never all of them in one call: (num_envs, 2) would not tell whether it is of the rows that begin
            parts = [chosen] if len(chosen) < self._env.num_envs else [chosen[:-1], chosen[-1:]]
            try:
                for part in parts:
                    self._draw(part, options)
            except NotByRowError:
                self._together = False
            else:
                return
        for i in range(len(chosen)):
            self._draw(chosen[i : i + 1], options)

    def _draw(self, chosen: Any, options: dict[str, Any]) -> None:
        """Call the task's own function for rows that are seeded anew.

        Raises:
            NotByRowError: several rows were asked for, and the task cannot draw them together.
        """
        env, states, generators = self._env, *self._seed(chosen.tolist())
        env.scene._reset_mask = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        env.scene._reset_mask[chosen] = True
        with torch.random.fork_rng():
            torch.manual_seed(int(env._episode_seed[int(chosen[0])]))
            env._episode_rng = states[0] if len(states) == 1 else _RowStates(states)
            before = _default_states(env.device)
            with _RowDraws(generators):
                type(env)._initialize_episode(env, chosen, options)
            if len(states) > 1 and _default_states(env.device) != before:
                raise NotByRowError("a random function that is not known")

    def _seed(self, rows: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Return NumPy's and torch's generators of rows; one row alone has torch's own, which every function uses."""
        states = []
        generators = [torch.default_generator] if len(rows) == 1 else [self._generators[row] for row in rows]
        for row, generator in zip(rows, generators, strict=True):
            seed = int(self._env._episode_seed[row])
            states.append(self._env._batched_episode_rng.rngs[row])
            states[-1].seed(seed)
            if len(rows) > 1:
                generator.manual_seed(seed)
        return states, generators


class _RowDraws(TorchFunctionMode):
    """Draws what torch's factories are asked for on the processor, for each row from its generator."""

    def __init__(self, generators: Sequence[Any]) -> None:
        super().__init__()
        self._generators, self._has_drawn = generators, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FACTORIES:
            self._has_drawn = True
            return self._fill(func, args, kwargs)
        if func in _DECISIONS and self._has_drawn and len(self._generators) > 1:
            raise NotByRowError("what is drawn decides how much more is drawn")
        return func(*args, **kwargs)

    def _fill(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        limits = _find_limits(func, args, kwargs)
        size = _find_size(func, args, kwargs)
        device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        rows = len(self._generators)
        if kwargs or (rows > 1 and (not size or size[0] != rows)):
            raise NotByRowError(f"{func.__name__} of {size} for {rows} rows")
        drawn = torch.empty(size, dtype=dtype or (torch.int64 if limits else None), device="cpu")
        for part, generator in zip(drawn.split(1) if rows > 1 else [drawn], self._generators, strict=True):
            if limits:
                part.random_(*limits, generator=generator)
            elif func is torch.rand:
                part.uniform_(generator=generator)
            else:
                part.normal_(generator=generator)
        return drawn.to(device or torch.get_default_device())


def _find_limits(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the lowest number and that above the highest of `torch.randint`; empty for the others."""
    if func is not torch.randint:
        return ()
    given = args if "size" in kwargs else args[:-1]
    if len(given) == 2:
        return int(given[0]), int(given[1])
    return int(kwargs.pop("low", 0)), int(given[0] if given else kwargs.pop("high"))


def _find_size(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[int, ...]:
    size = kwargs.pop("size", args[-1:] if func is torch.randint else args)
    return tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)


def _default_states(device: Any) -> list[bytes]:
    """Return the states of torch's own generators."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return [state.numpy().tobytes() for state in states]


class _RowStates:
    """NumPy's generators of several rows, asked as one for arrays [rows, …]."""

    def __init__(self, states: Sequence[Any]) -> None:
        self._states = states

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Array:
        return self._draw("normal", loc, scale, size)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Array:
        return self._draw("uniform", low, high, size)

    def __getattr__(self, name: str) -> Any:
        raise NotByRowError(f"{name} of NumPy")

    def _draw(self, name: str, first: Any, second: Any, size: Any) -> Array:
        if not isinstance(size, tuple) or size[0] != len(self._states) or np.ndim(first) or np.ndim(second):
            raise NotByRowError(f"{name} of {size} for {len(self._states)} rows")
        return np.concatenate([getattr(state, name)(first, second, (1, *size[1:])) for state in self._states])
