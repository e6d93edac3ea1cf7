"""What algorithms say of themselves before anything is built."""

import pytest

from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Discount, Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import AlgoNode
from embodied_rl.training.algorithms.grpo import GRPO, GRPOConfig
from embodied_rl.training.algorithms.imitation.cloning import SFT, SFTConfig
from embodied_rl.training.algorithms.nft import NFT, NFTConfig
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from tests.support.refusals import refuses


def test_they_follow_from_the_settings() -> None:
    config = PPOConfig(gamma=0.9, discount="decision", epochs=5, critic_warmup=3, minibatch=64)
    discount = Discount(0.9, "decision")
    assert PPO.needs(config) == Needs(critic=True, epochs=5, warmup=3, discount=discount, minibatch=64)
    grouped = GRPO.needs(GRPOConfig(group_size=4, epochs=2, minibatch=32))
    assert grouped == Needs(group_size=4, fresh_episodes=True, epochs=2, minibatch=32)
    assert NFT.needs(NFTConfig(minibatch=8)) == Needs(fresh_episodes=True, fixed_noise=True, epochs=3, minibatch=8)
    assert SFT.needs(SFTConfig()).learns_from == "demonstrations"


def test_a_configuration_names_them() -> None:
    method = build.find_method(AlgoNode("grpo", options={"group_size": 6}))
    assert (method.kind, method.needs.group_size) == (GRPO, 6)
    with refuses("clip-out-of-range", "algo.dual_clip=1"):
        build.find_method(AlgoNode("ppo", options={"dual_clip": 1}))


@pytest.mark.parametrize(("key", "least"), [("epochs", 1), ("warmup_updates", 0), ("minibatch", 1)])
def test_the_smallest_number_that_means_something_is_taken(key: str, least: int) -> None:
    """One pass, no warm-up, a row at a time; one less is refused by its key."""
    build.find_method(AlgoNode("ppo", options={key: least}))
    with pytest.raises(UserError, match=rf"algo\.{key}"):
        build.find_method(AlgoNode("ppo", options={key: least - 1}))


@pytest.mark.parametrize(("key", "value"), [("gamma", 1.01), ("lam", 1.01), ("gamma", 2.0), ("lam", 2.0)])
def test_a_discount_or_lambda_above_1_is_refused(key: str, value: float) -> None:
    build.find_method(AlgoNode("ppo", options={key: 1.0}))
    with refuses("discount-out-of-range", f"algo.{key}={value}"):
        build.find_method(AlgoNode("ppo", options={key: value}))


def test_noise_that_would_grow_is_refused() -> None:
    """It only falls: above 1 the setting would have no effect."""
    build.find_method(AlgoNode("ppo", options={"noise_final": 1.0}))
    with pytest.raises(UserError, match=r"algo\.noise_final must be at most 1, not 1\.5"):
        build.find_method(AlgoNode("ppo", options={"noise_final": 1.5}))


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.parametrize("bound", ["clip_low", "clip_high"])
def test_a_clip_bound_of_0_is_refused_by_every_method(name: str, bound: str) -> None:
    with refuses("clip-out-of-range", f"algo.{bound}=0"):
        build.find_method(AlgoNode(name, options={bound: 0.0}))
