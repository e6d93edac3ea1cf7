"""Measure the time until a simulated robot stands still after a fault, with real processes."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_rl.benchmarks.robot_runs.deployment import START_S, PlannedDeployment, start_processes
from embodied_rl.benchmarks.robot_runs.episode_runner import RobotEpisodeRunner
from embodied_rl.benchmarks.robot_runs.processes import DeploymentProcess, DeploymentProcesses, reserve_domain_id
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import RunFailed

Fault = Literal["server killed", "bridge killed", "bridge stopped", "emergency stop", "camera frozen"]
STILL = 0.02
"""Joint speeds below this, in rad/s or m/s, count as still."""
MOVING = 0.1
"""Joint speed above which the robot counts as moving, in rad/s or m/s."""
QUIET_S = 0.4
"""Seconds for which all speeds must stay below `STILL`."""
PATIENCE_S = 60.0
FAULTS = "/simulation/faults"


@dataclass(frozen=True)
class StopFigures:
    """The measurement of one stop.

    Attributes:
        fault: the injected fault.
        ramp_s: seconds until the first command of the last descent to rest; None if it does not exist.
        still_s: seconds until all joints were still.
        why: last status of the bridge.
        load: load average of the machine over one minute.
    """

    fault: Fault
    ramp_s: float | None
    still_s: float
    why: str
    load: float


@dataclass
class StopTestBench:
    """A running deployment with its joint speeds and commands as (arrival time, speed), monotonic seconds."""

    planned: PlannedDeployment
    processes: DeploymentProcesses
    node: Transport
    runner: RobotEpisodeRunner
    speeds: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    commands: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def __post_init__(self) -> None:
        robot = self.planned.robot
        deep = QoS("best_effort", depth=200)
        (joints,) = (each for each in robot.topics.values() if each.type_name == "sensor_msgs/msg/JointState")

        def note_joints(message: Any, received_ns: int, source_ns: int) -> None:
            self.speeds.append((time.monotonic(), float(np.abs(message.velocity).max())))

        def note_command(message: Any, received_ns: int, source_ns: int) -> None:
            self.commands.append((time.monotonic(), float(np.linalg.norm(message.data[:3]))))

        self.node.create_subscription(joints.name, joints.type_name, deep, note_joints)
        self.node.create_subscription(robot.command.name, robot.command.type_name, deep, note_command)
        self._faults = self.node.create_publisher(FAULTS, "std_msgs/msg/String", "command")
        self._estop = self.node.create_publisher(robot.operator.estop, "std_msgs/msg/Bool", "latched")

    def find(self, name: str) -> DeploymentProcess:
        """Return the process of this name."""
        return next(each for each in self.processes.started if each.name == name)

    def begin_moving(self, index: int = 0) -> None:
        """Begin an episode, and wait until the policy moves the robot.

        Raises:
            RunFailed: the robot does not move in time.
        """
        self.runner.begin(self.planned.part.episodes[index])
        began = time.monotonic()

        def moves() -> bool:
            commanded = any(now > began and speed > 0 for now, speed in self.commands[-20:])
            return commanded and bool(self.speeds) and self.speeds[-1][1] > MOVING

        self.runner.wait_for("The robot's motion", moves, PATIENCE_S)

    def inject(self, fault: Fault) -> None:
        """Inject a fault that must stop the robot."""
        make = self.node.messages.make
        match fault:
            case "server killed":
                os.kill(self.find("server").pid, signal.SIGKILL)
            case "bridge killed":
                os.kill(self.find("bridge").pid, signal.SIGKILL)
            case "bridge stopped":
                os.kill(self.find("bridge").pid, signal.SIGSTOP)
            case "emergency stop":
                self._estop.publish(make("std_msgs/msg/Bool", data=True))
            case "camera frozen":
                self._faults.publish(make("std_msgs/msg/String", data=json.dumps({"cameras": "frozen"})))

    def wait_until_still(self, since: float) -> float:
        """Wait until the robot is still; return the seconds from `since` until then.

        Raises:
            RunFailed: it is not still in time.
        """
        until = since + PATIENCE_S
        while time.monotonic() < until:
            self.node.spin_until(lambda: False, 0.05)
            began = None
            for now, speed in reversed(self.speeds):
                if speed >= STILL or now < since:
                    break
                began = now
            if began is not None and self.speeds[-1][0] - began >= QUIET_S:
                return began - since
        raise RunFailed(f"The robot was not still within {PATIENCE_S:g} s. {self.runner.describe()}")

    def find_ramp(self, since: float) -> float | None:
        """Return the seconds from `since` until the commands began their last descent to rest; None without one."""
        descent = None
        for (_, before), (now, speed) in zip(self.commands, self.commands[1:], strict=False):
            if now < since:
                continue
            if speed > before + 1e-9 or (speed == before and speed > 0):
                descent = None
            elif descent is None and speed < before:
                descent = now
        return None if descent is None or self.commands[-1][1] > 1e-6 else descent - since


@contextmanager
def open_test_bench(planned: PlannedDeployment, folder: Path) -> Iterator[StopTestBench]:
    """Start server, robot and bridge, and wait until the bridge waits for an episode.

    Raises:
        RunFailed: one of them ended.
    """
    with ExitStack() as stack:
        variables = stack.enter_context(reserve_domain_id())
        processes = stack.enter_context(DeploymentProcesses(folder, variables))
        start_processes(planned, processes)
        transport = planned.config.transport
        node = stack.enter_context(open_transport(transport, "deploy", read_environment(os.environ | variables)))
        runner = RobotEpisodeRunner(node, planned.robot, processes.check)
        runner.wait_for_bridge(START_S)
        yield StopTestBench(planned, processes, node, runner)


def measure_stop(
    planned: PlannedDeployment, folder: Path, fault: Fault, then: Callable[[StopTestBench], None] = lambda bench: None
) -> StopFigures:
    """Start a deployment, let the policy move the robot, inject a fault, and measure the time to standstill.

    Args:
        planned: the deployment, in real time.
        folder: folder for the logs of the processes.
        fault: the fault to inject.
        then: called with the test bench after the measurement.

    Raises:
        RunFailed: the robot does not move, or is not still in time.
    """
    with open_test_bench(planned, folder) as bench:
        bench.begin_moving()
        since = time.monotonic()
        bench.inject(fault)
        still = bench.wait_until_still(since)
        then(bench)
        return StopFigures(
            fault, bench.find_ramp(since), still, str(bench.runner.status.get("why", "")), os.getloadavg()[0]
        )
