"""The shipped checkpoints load and do what their headers say."""

import math

import pytest

from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.config import assets
from embodied_rl.config.freeze import freeze_config
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from tests.support.environments import python_of

EPISODES = 192
UNLIKELY = 3.3  # standard deviations: one in a thousand


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "tabletop_base",
        "tabletop_tokens",
        pytest.param("metaworld_mt5", marks=pytest.mark.sim),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tabletop_careful", "tabletop_async")),
    ],
)
def test_checkpoint_scores_as_its_header_says(name: str) -> None:
    """On episodes that the recorded figure did not use, the success differs by no more than chance allows."""
    path = assets.find_asset(f"{name}.safetensors")
    recorded = read_metadata(path).extra["success"]
    if read_metadata(path).extra["sim"]["name"] == "metaworld":
        python_of("metaworld")
    kind = SimulatorKind.find(freeze_config(SimNode, read_metadata(path).extra["sim"], "sim"))
    episodes = enumerate_episodes(kind.spec, "eval", EPISODES, seed=1)
    results = evaluate_policy(
        load_deployed(str(path)), [kind.inline(64, "evaluation")], kind.spec, episodes, 0, 64, None
    )
    found = sum(result.success for result in results) / EPISODES
    pooled = (found * EPISODES + recorded["rate"] * recorded["episodes"]) / (EPISODES + recorded["episodes"])
    spread = math.sqrt(pooled * (1 - pooled) * (1 / EPISODES + 1 / recorded["episodes"]))
    assert abs(found - recorded["rate"]) < UNLIKELY * spread, f"{name}: {found:.1%}, header {recorded['rate']:.1%}"


def test_checkpoints_are_small() -> None:
    """They travel inside the wheel."""
    assert sum(path.stat().st_size for path in assets.find_assets_folder().glob("*.safetensors")) < 10_000_000
