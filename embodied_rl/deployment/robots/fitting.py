"""Checks that a policy fits a robot, and that its chunks last until the next one. Each error has a remedy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from embodied_rl.deployment.execution.settings import Strategy, check_budget, choose_replan
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.description import SI, PolicyDescription
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class OpenLoopBudget:
    """Times of open-loop execution.

    Attributes:
        lasts_s: duration of a chunk. latency_s: of inference, p99.
        replan_s: between two inference requests.
    """

    lasts_s: float
    latency_s: float
    replan_s: float


def check_policy(robot: RobotDescription, policy: PolicyDescription, words: Sequence[str] = ()) -> None:
    """Check that cameras, state, actions, limits, units, rate and words of a policy fit a robot; raises UserError."""
    known = {camera.name: camera for camera in robot.cameras}
    for name, (height, width) in policy.cameras.items():
        if name not in known:
            raise UserError(
                f"The policy sees camera {name!r}, and robot {robot.name} has {', '.join(known) or 'none'}: give the "
                f"robot's camera this name (cameras.{name}), or choose a policy for the cameras that there are.",
                code="policy-does-not-fit",
            )
        camera = known[name]
        if (camera.height, camera.width) != (height, width):
            raise UserError(
                f"The policy sees camera {name!r} at {width}×{height} pixels, robot {robot.name} gives "
                f"{camera.width}×{camera.height}: set cameras.{name}.width: {width} and height: {height}, with resize "
                "where the camera has another size.",
                code="policy-does-not-fit",
            )
    _check_names("state", tuple(entry.name for entry in robot.state), policy.state_names, robot.name)
    _check_names("actions", tuple(entry.name for entry in robot.actions), policy.action_names, robot.name)
    if policy.state_units != SI:
        raise UserError(
            f"The policy's state is in {policy.state_units}, robot {robot.name}'s in {SI}: units are converted by the "
            "factors of `reads`; export the policy with a state in SI.",
            code="policy-does-not-fit",
        )
    rows = zip(robot.actions, policy.action_low, policy.action_high, strict=True)
    for entry, low, high in rows:
        if (entry.action_low, entry.action_high) != (low, high):
            raise UserError(
                f"Action {entry.name!r} goes from {low:g} to {high:g} for the policy, and from {entry.action_low:g} to "
                f"{entry.action_high:g} {entry.unit} in robot {robot.name}'s file: if both mean the same quantity, set "
                f"actions.{entry.name}.low and high to the policy's; else the policy is for another robot.",
                code="policy-does-not-fit",
            )
    if policy.control_hz is not None and policy.control_hz != robot.control_hz:
        raise UserError(
            f"The policy acts {policy.control_hz:g} times a second, robot {robot.name} {robot.control_hz:g} times: its "
            "actions would mean other speeds; set control_hz in the robot's file to the policy's.",
            code="policy-does-not-fit",
        )
    policy.check_body(robot.body, words)


def check_open_loop(
    robot: RobotDescription,
    policy: PolicyDescription,
    latency_s: float,
    strategy: Strategy = "naive",
    replan: int | None = None,
) -> OpenLoopBudget:
    """Check that a chunk lasts until the next one arrives: p99 latency + replan ≤ horizon / control_hz.

    Args:
        latency_s: of inference, p99, in seconds.
        strategy: of the executor. replan: control steps between two requests; None: the default.

    Raises:
        UserError: the robot would run out of actions; the message has the times and a remedy.
    """
    step_s = 1 / robot.control_hz
    delay = math.ceil(latency_s / step_s - 1e-9)
    every = choose_replan(delay, strategy, policy.executed) if replan is None else replan
    budget = OpenLoopBudget(policy.horizon * step_s, latency_s, every * step_s)
    try:
        check_budget(policy.horizon, delay, every, strategy)
    except UserError as error:
        raise UserError(
            f"A chunk lasts {budget.lasts_s * 1e3:.0f} ms at control_hz={robot.control_hz:g}; an answer takes "
            f"{latency_s * 1e3:.0f} ms (p99), and requests are {budget.replan_s * 1e3:.0f} ms apart. {error}",
            code=error.code,
        ) from None
    return budget


def _check_names(group: str, mine: tuple[str, ...], wanted: tuple[str, ...], robot: str) -> None:
    if mine == wanted:
        return
    if sorted(mine) == sorted(wanted):
        raise UserError(
            f"The policy's {group} are {', '.join(wanted)}, in this order, and robot {robot}'s are {', '.join(mine)}: "
            f"bring {group} in the robot's file into the policy's order.",
            code="policy-does-not-fit",
        )
    missing = [name for name in wanted if name not in mine]
    beyond = [name for name in mine if name not in wanted]
    problem = [f"the policy has {', '.join(missing)}"] if missing else []
    problem += [f"robot {robot} has {', '.join(beyond)}"] if beyond else []
    problem += [] if problem else [f"the policy has {len(wanted)} of them, robot {robot} {len(mine)}"]
    raise UserError(
        f"The {group} differ: {'; '.join(problem)}, and the other does not. The policy was made for another robot: use "
        "a file of that robot, or a policy that was trained with this one.",
        code="policy-does-not-fit",
    )
