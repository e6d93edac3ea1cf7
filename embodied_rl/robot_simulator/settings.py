"""The settings of `sim=robot`, and the specification of a robot as a simulator."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.interfaces.trust import Code, CodeKeys, Text, Trust
from embodied_rl.robot_simulator.episode_control import EpisodeReturns
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


@dataclass(frozen=True)
class RobotSimulatorConfig:
    """Settings of `sim=robot`. By default no real robot moves: a file from a stranger cannot change that."""

    robot: Code = "tabletop"
    """the robot: a name that `embodied-rl list robots` shows, or a YAML file."""
    transport: Annotated[Literal["in_process", "dds", "rclpy"], Trust.CODE] = "in_process"
    """the transport. in_process simulates the robot in this process, in lockstep; dds and rclpy reach a robot
    that runs: a real one, or `embodied-rl robot`."""
    lockstep: bool = True
    """the robot waits for each command, as a simulated one does with lockstep=true; false: real time."""
    simulator: Code | None = "tabletop"
    """simulator of the robot, with its tasks; null for a real robot, which has the tasks below."""
    simulated: CodeKeys = field(default_factory=dict[str, Any])
    """keys of that simulator, as sim.<key> has them without a robot."""
    tasks: tuple[Text, ...] = ()
    """for a real robot: the instructions of its tasks."""
    horizon: int = 200
    """for a real robot: control steps after which an episode is truncated."""
    deadman: Annotated[bool, Trust.CODE] = True
    """the dead man's switch must be held, where the robot's file names one; false is for simulated robots alone."""
    patience: float = 20.0
    """seconds that the robot may take to answer."""
    attend: float = 600.0
    """for a real robot: seconds that a human may take to set up the scene of an episode."""
    return_points: Code | None = None
    """file of return points (JSON): each episode begins at one of its task, the more likely the more often the task
    failed from there, and its outcome is counted. `bridge return_points=` stores points."""
    human: Literal["none", "scripted"] = "none"
    """in_process alone: scripted takes over where the policy makes no progress, with the simulator's own operator; not
    in evaluations of a training run."""

    def __post_init__(self) -> None:
        if self.transport == "in_process" and (self.simulator is None or not self.lockstep):
            raise UserError(
                "sim.transport=in_process simulates the robot in this process, in lockstep. For another robot, or real "
                "time: sim.transport=dds.",
                code="keys-contradict",
            )
        if self.simulator is None and (self.lockstep or not self.tasks):
            raise UserError(
                "sim.simulator=null is a real robot: give sim.lockstep=false and its instructions, "
                "sim.tasks=['put the cube into the bowl'].",
                code="keys-contradict",
            )
        if self.simulator is not None and self.tasks:
            raise UserError(
                f"sim.tasks: {self.simulator} has its own tasks. Leave them out, or set sim.simulator=null.",
                code="keys-contradict",
            )
        if self.human != "none" and self.transport != "in_process":
            raise UserError(
                f"sim.human={self.human} is for sim.transport=in_process; elsewhere humans are real.",
                code="keys-contradict",
            )
        if not (self.patience > 0 and self.attend > 0 and self.horizon >= 1):
            raise UserError(
                "sim.patience and sim.attend must be above 0 s, sim.horizon at least 1.", code="value-out-of-range"
            )


def make_simulator_node(config: RobotSimulatorConfig) -> SimNode:
    """Return the `sim` node of the robot's simulator, which reports progress where a scripted human needs it."""
    assert config.simulator is not None, "a real robot has no simulator"
    if config.simulator == "robot":
        raise UserError(
            "sim.simulator=robot: choose the robot's simulator, such as tabletop.", code="simulator-without-servo"
        )
    node = SimNode(config.simulator, num_envs=1, options=dict(config.simulated))
    if config.human == "scripted" and hasattr(SimulatorKind.find(node, "sim.simulated").options, "progress"):
        node = replace(node, options={"progress": True, **node.options})
    return node


def describe_robot(config: RobotSimulatorConfig) -> SimulatorSpec:
    """Return the specification: the body from the robot's description, the tasks from its simulator or the settings.

    Raises:
        UserError: the robot's file or that of its return points is invalid, or its simulator has another body.
    """
    robot = load_robot(config.robot)
    body = robot.body
    if config.return_points is not None:
        EpisodeReturns(config.return_points, robot)
    if config.simulator is not None:
        spec = SimulatorKind.find(make_simulator_node(config), "sim.simulated").spec
        if spec.body != body:
            raise UserError(
                f"sim.simulator={config.simulator} does not simulate robot={robot.name}: cameras, state, actions or "
                "control_hz differ. Give the sim.simulator of that robot, and in sim.simulated its keys; or for a real "
                "robot sim.simulator=null.",
                code="robot-simulator-mismatch",
            )
        if config.human == "scripted" and not spec.reports_progress:
            raise UserError(
                "sim.human=scripted takes over where a task makes no progress, which this simulator does not report: "
                "give sim.simulator=<one that does>, and no sim.simulated={progress: false}.",
                code="human-unsupported",
            )
        return replace(
            spec, privileged_names=(), can_snapshot=False, can_replay=False, reports_progress=False, device="cpu"
        )
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
        words=tuple(sorted({word for task in config.tasks for word in task.split()})),
        instruction_length=max(len(task.split()) for task in config.tasks),
        seeded=False,
        hold=hold if still else None,
        kept_while_holding=tuple(entry.name for entry in robot.actions if entry.keeps) if still else (),
    )
