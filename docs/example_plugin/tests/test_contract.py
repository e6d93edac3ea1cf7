"""What embodied-rl asks of a simulator and of a policy, and what this simulator promises besides."""

import numpy as np
import pytest

from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.testing.contract import check_backbone, check_simulator
from embodied_rl_example.hardest import Hardest, HardestConfig
from embodied_rl_example.reacher import Reacher, ReacherConfig
from embodied_rl_example.small_flow import SmallFlow, SmallFlowConfig


def test_the_simulator_keeps_the_contract() -> None:
    check_simulator(
        lambda num_envs: Reacher(ReacherConfig(horizon=8), num_envs),
        build_with_horizon=lambda num_envs, horizon: Reacher(ReacherConfig(horizon=horizon), num_envs),
    )


def test_the_policy_keeps_the_contract() -> None:
    sizes = {"action_dim": 2, "state_dim": 2, "cameras": ("top",), "image_size": (32, 32), "token_length": 4}
    check_backbone(lambda: SmallFlow(SmallFlowConfig(), vocabulary_size=6, **sizes), vocabulary=6)


def test_the_operator_always_succeeds() -> None:
    simulator = Reacher(ReacherConfig(), 40)
    simulator.reset([Episode(row, task=row % 2, seed=row) for row in range(40)])
    operate, success = simulator.expert(), np.zeros(40, bool)
    for _ in range(simulator.spec.horizon):
        success |= simulator.step(operate()[:, None], [None] * 40).success[:, 0]
    assert success.all()


def test_the_wrong_disc_ends_the_episode_without_success() -> None:
    simulator = Reacher(ReacherConfig(), 1)
    observation = simulator.reset([Episode(0, task=0, seed=3)])
    for _ in range(simulator.spec.horizon):
        assert observation.privileged is not None
        way = observation.privileged[:, 2:]  # to the other disc
        result = simulator.step((way / np.abs(way).max())[:, None], [None])
        observation = result.observation
        if result.terminated[0]:
            break
    assert result.terminated[0] and not result.success.any() and not result.reward.any()


def test_the_picture_shows_both_discs_in_their_colours_and_the_point() -> None:
    picture = Reacher(ReacherConfig(), 1).reset([Episode(0, task=1, seed=0)]).images["top"][0]
    shown = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert shown == {(30, 30, 30), (220, 40, 40), (40, 80, 230), (255, 255, 255)}


@pytest.mark.parametrize("changed, message", [({"cameras": ()}, "one camera"), ({"auxiliary_names": ("x",)}, "give")])
def test_what_the_policy_cannot_do_is_refused(changed: dict, message: str) -> None:
    sizes = {"action_dim": 2, "state_dim": 2, "cameras": ("top",), "image_size": (32, 32), "token_length": 4}
    with pytest.raises(UserError, match=message):
        SmallFlow(SmallFlowConfig(), vocabulary_size=6, **(sizes | changed))


def test_the_curriculum_counts_failures_and_continues_where_it_was() -> None:
    spec = Reacher.spec_of(ReacherConfig())
    first, second = Hardest(HardestConfig(start=2), spec), Hardest(HardestConfig(), spec)
    ends = [(0, False), (1, True), (0, False), (1, False)]
    first.update([EpisodeRecord(i, task, -1, "train", won, won, 9, float(won)) for i, (task, won) in enumerate(ends)])
    second.load(first.state())
    assert first.weights().tolist() == second.weights().tolist() == [4, 3]
