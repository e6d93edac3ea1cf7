"""Settings are refused with the key and the remedy, and need nothing of LIBERO's package."""

from typing import Any

import pytest

from embodied_rl_sims.libero import LiberoConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "libero_100"}, "sim.suite=libero_100: it is one of libero_spatial"),
        ({"rendering": "fast"}, "sim.rendering=fast: it is one of official, light"),
        ({"renderer": "glfw"}, "sim.renderer=glfw: it is one of egl, osmesa"),
        ({"image_size": 0}, "sim.image_size=0: it must be at least 1"),
        ({"horizon": 0}, "sim.horizon=0"),
        ({"settle": -1}, "sim.settle=-1"),
        ({"keep": -1}, "sim.keep=-1"),
        ({"control_freq": 0}, "sim.control_freq=0"),
        ({"cameras": ("agentview", "agentview")}, "a camera is named twice"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LiberoConfig(**options)


@pytest.mark.parametrize(
    ("suite", "steps"),
    [("libero_spatial", 220), ("libero_object", 280), ("libero_goal", 300), ("libero_10", 520), ("libero_90", 400)],
)
def test_episodes_last_as_long_as_openpi_s(suite: Any, steps: int) -> None:
    assert LiberoConfig(suite=suite).episode_steps == steps
    assert LiberoConfig(suite=suite, horizon=7).episode_steps == 7
