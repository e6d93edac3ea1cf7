"""Reset many rows of one ManiSkill batch at once, each from its own seed.

The package seeds a batch by its first row, and for each reset makes two generators for every environment it has. Here
one reset serves all rows, and a task's random numbers are drawn row by row from each row's own generators: each row
gets the same numbers as the package's single environment on the processor with the same seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from embodied_rl.interfaces.sim import Array

_FEW = 16
"""Fewer rows are reset one by one: it would be ambiguous whether a shape such as (3, 2) has 3 rows."""
_FACTORIES = (torch.rand, torch.randn, torch.randint)
_DECISIONS = (torch.Tensor.__bool__, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.nonzero, torch.nonzero)


class RowSplitError(Exception):
    """A task draws random numbers in a way that cannot be split into rows."""


class RowResetter:
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
        if env.reconfiguration_freq:  # the scene itself depends on the seed
            for i, seed in enumerate(seeds):
                env.reset(seed=[seed] * env.num_envs, options={"env_idx": chosen[i : i + 1]})
            return
        env._episode_seed[list(rows)] = seeds
        env._initialize_episode = self._initialize  # as an attribute, it hides the class's method
        try:
            env.reset(options={"env_idx": chosen})
        finally:
            del env._initialize_episode
            env._episode_rng = env._batched_episode_rng.rngs[0]

    def _initialize(self, chosen: Any, options: dict[str, Any]) -> None:
        if len(chosen) >= _FEW and self._together:
            # never all rows in one call: (num_envs, 2) would be ambiguous
            parts = [chosen] if len(chosen) < self._env.num_envs else [chosen[:-1], chosen[-1:]]
            try:
                for part in parts:
                    self._draw(part, options)
            except RowSplitError:
                self._together = False
            else:
                return
        for i in range(len(chosen)):
            self._draw(chosen[i : i + 1], options)

    def _draw(self, chosen: Any, options: dict[str, Any]) -> None:
        """Call the task's own function for newly seeded rows.

        Raises:
            RowSplitError: several rows were requested, and the task cannot draw them together.
        """
        env, rows = self._env, chosen.tolist()
        states = [env._batched_episode_rng.rngs[row] for row in rows]
        # a single row uses torch's global generator, seeded below
        generators = [torch.default_generator] if len(rows) == 1 else [self._generators[row] for row in rows]
        for row, state, generator in zip(rows, states, generators, strict=True):
            state.seed(seed := int(env._episode_seed[row]))
            if len(rows) > 1:
                generator.manual_seed(seed)
        env.scene._reset_mask = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        env.scene._reset_mask[chosen] = True
        with torch.random.fork_rng():
            torch.manual_seed(int(env._episode_seed[int(chosen[0])]))
            env._episode_rng = states[0] if len(states) == 1 else _RowGenerators(states)
            before = _default_states(env.device)
            with _RowSampling(generators):
                type(env)._initialize_episode(env, chosen, options)
            if len(states) > 1 and _default_states(env.device) != before:
                raise RowSplitError("an unsupported random function")


class _RowSampling(TorchFunctionMode):
    """Replaces torch's random factories: draws on the processor, each row from its own generator."""

    def __init__(self, generators: Sequence[Any]) -> None:
        super().__init__()
        self._generators, self._has_drawn = generators, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _FACTORIES:
            self._has_drawn = True
            limits = _find_limits(func, args, kwargs)
            size = kwargs.pop("size", args[-1:] if func is torch.randint else args)
            size = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
            device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
            rows = len(self._generators)
            if kwargs or (rows > 1 and (not size or size[0] != rows)):
                raise RowSplitError(f"{func.__name__} of {size} for {rows} rows")
            drawn = torch.empty(size, dtype=dtype or (torch.int64 if limits else None), device="cpu")
            for part, generator in zip(drawn.split(1) if rows > 1 else [drawn], self._generators, strict=True):
                if limits:
                    part.random_(*limits, generator=generator)
                elif func is torch.rand:
                    part.uniform_(generator=generator)
                else:
                    part.normal_(generator=generator)
            return drawn.to(device or torch.get_default_device())
        if func in _DECISIONS and self._has_drawn and len(self._generators) > 1:
            raise RowSplitError("the number of draws depends on earlier draws")
        return func(*args, **kwargs)


def _find_limits(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[int, ...]:
    """Return the bounds [low, high) of `torch.randint`; empty for other functions."""
    if func is not torch.randint:
        return ()
    given = args if "size" in kwargs else args[:-1]
    if len(given) == 2:
        return int(given[0]), int(given[1])
    return int(kwargs.pop("low", 0)), int(given[0] if given else kwargs.pop("high"))


def _default_states(device: Any) -> list[bytes]:
    """Return the states of torch's global generators."""
    states = [torch.random.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return [state.numpy().tobytes() for state in states]


class _RowGenerators:
    """NumPy's generators of several rows with the interface of one; they return arrays [rows, …]."""

    def __init__(self, states: Sequence[Any]) -> None:
        self._states = states

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Array:
        return self._draw("normal", loc, scale, size)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Array:
        return self._draw("uniform", low, high, size)

    def __getattr__(self, name: str) -> Any:
        raise RowSplitError(f"{name} of NumPy")

    def _draw(self, name: str, first: Any, second: Any, size: Any) -> Array:
        if not isinstance(size, tuple) or size[0] != len(self._states) or np.ndim(first) or np.ndim(second):
            raise RowSplitError(f"{name} of {size} for {len(self._states)} rows")
        return np.concatenate([getattr(state, name)(first, second, (1, *size[1:])) for state in self._states])
