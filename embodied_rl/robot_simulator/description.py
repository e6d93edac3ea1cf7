"""Specification of a robot as a simulator: the body from its description, the tasks from simulator or settings."""

from dataclasses import replace

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


def make_simulator_node(config: RobotSimulatorConfig) -> SimNode:
    """Return the `sim` node of the robot's simulator."""
    assert config.simulator is not None, "a real robot has no simulator"
    if config.simulator == "robot":
        raise UserError(
            "sim.simulator=robot: choose the robot's simulator, such as tabletop.", code="simulator-without-servo"
        )
    return SimNode(config.simulator, num_envs=1, options=dict(config.simulated))


def describe_robot(config: RobotSimulatorConfig) -> SimulatorSpec:
    """Return the specification of a robot as a simulator.

    Raises:
        UserError: the robot's file is invalid, or its simulator has another body.
    """
    robot = load_robot(config.robot)
    if config.simulator is None:
        return _describe_real(robot, config)
    spec = SimulatorKind.find(make_simulator_node(config)).spec
    if spec.body != robot.body:
        raise UserError(
            f"sim.simulator={config.simulator} does not simulate robot={robot.name}: cameras, state, actions or "
            "control_hz differ. Give sim.simulated the keys that the robot's file was made for.",
            code="robot-simulator-mismatch",
        )
    return replace(
        spec,
        privileged_names=(),
        can_snapshot=False,
        reports_progress=False,
        device="cpu",
    )


def _describe_real(robot: RobotDescription, config: RobotSimulatorConfig) -> SimulatorSpec:
    body = robot.body
    words = sorted({word for task in config.tasks for word in task.split()})
    hold = tuple(min(max(0.0, low), high) for low, high in zip(body.action_low, body.action_high, strict=True))
    still = all(entry.kind != "position" or entry.keeps for entry in robot.actions)
    return SimulatorSpec(
        cameras=tuple(Camera(each.name, each.height, each.width) for each in robot.cameras),
        state_names=body.state_names,
        action_names=body.action_names,
        action_low=body.action_low,
        action_high=body.action_high,
        control_hz=body.control_hz,
        horizon=config.horizon,
        tasks=tuple(Task(task, robot.name) for task in config.tasks),
        words=tuple(words),
        instruction_length=max(len(task.split()) for task in config.tasks),
        seeded=False,
        hold=hold if still else None,
        kept_while_holding=tuple(entry.name for entry in robot.actions if entry.keeps) if still else (),
    )
