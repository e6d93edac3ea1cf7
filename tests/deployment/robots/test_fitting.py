"""A policy for another robot is refused; a chunk has to last until the next one arrives."""

from dataclasses import replace
from typing import Any

import pytest

from embodied_rl.deployment.robots.fitting import check_open_loop, check_policy
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import UserError
from tests.support.refusals import refuses
from tests.support.robots import describe_policy

ROBOT = load_robot("tabletop")
POLICY = describe_policy(ROBOT, horizon=10, words=("push", "the", "red", "cube"))


def test_the_policy_of_the_simulator_fits() -> None:
    check_policy(ROBOT, POLICY, ("push", "the", "cube"))
    check_policy(ROBOT, replace(POLICY, control_hz=None, cameras={}))


@pytest.mark.parametrize(
    ("changes", "data"),
    [
        ({"cameras": {"wrist": (64, 64)}}, ["camera 'wrist'", "tabletop has front", "cameras.wrist"]),
        ({"cameras": {"front": (32, 48)}}, ["48×32", "64×64", "cameras.front.width: 48"]),
        ({"state_names": POLICY.state_names[:-1]}, ["The state differ", "tabletop has command_z"]),
        ({"state_names": (*POLICY.state_names, "force")}, ["the policy has force"]),
        ({"state_names": POLICY.state_names[::-1]}, ["in this order", "bring state"]),
        ({"state_names": (*POLICY.state_names, "tool_x")}, ["the policy has 8 of them, robot tabletop 7"]),
        ({"action_names": ("gripper", *POLICY.action_names[:3])}, ["in this order", "bring actions"]),
        ({"action_names": ("j1", "j2", "j3", "j4")}, ["the policy has j1, j2, j3, j4; robot tabletop has move_x"]),
        ({"state_units": "degrees"}, ["in degrees", "tabletop's in SI"]),
        ({"action_high": (0.05, 0.03, 0.03, 1.0)}, ["'move_x'", "-0.03 to 0.05", "-0.03 to 0.03 m", "move_x.low"]),
        ({"control_hz": 20.0}, ["acts 20 times", "tabletop 12.5 times", "control_hz"]),
        ({"words": ("push",)}, ["without the words cube"]),
    ],
)
def test_a_policy_for_another_robot_is_refused(changes: dict[str, Any], data: list[str]) -> None:
    with refuses("policy-does-not-fit", *data) as raised:
        check_policy(ROBOT, replace(POLICY, **changes), ("push", "cube"))
    assert "\n" not in str(raised.value)


def test_the_budget_is_in_seconds() -> None:
    budget = check_open_loop(ROBOT, POLICY, 0.15)
    assert (budget.lasts_s, budget.replan_s) == pytest.approx((0.8, 0.16))
    assert check_open_loop(ROBOT, POLICY, 0.16).replan_s == pytest.approx(0.16)  # two steps exactly are two


@pytest.mark.parametrize(("latency_s", "replan"), [(0.41, None), (0.15, 9), (0.3, 1)])
def test_a_chunk_that_ends_too_early_is_refused(latency_s: float, replan: int | None) -> None:
    with pytest.raises(
        UserError, match=rf"A chunk lasts 800 ms.*takes {latency_s * 1e3:.0f} ms \(p99\).*Take "
    ) as raised:
        check_open_loop(ROBOT, POLICY, latency_s, replan=replan)
    assert "\n" not in str(raised.value)


def test_a_stopped_robot_may_wait_longer() -> None:
    assert check_open_loop(ROBOT, POLICY, 5.0, "stop").replan_s == pytest.approx(0.4)
