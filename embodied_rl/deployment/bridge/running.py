"""Run of the bridge: checks, control loop, and the robot brought to rest at the end."""

from contextlib import ExitStack, closing
from pathlib import Path

from embodied_rl.deployment.bridge.bridge import Bridge
from embodied_rl.deployment.bridge.bridge_factory import open_policy
from embodied_rl.deployment.bridge.checks import wait_until
from embodied_rl.deployment.bridge.motion_files import make_motion_manager
from embodied_rl.deployment.bridge.pacing import low_latency_interpreter
from embodied_rl.deployment.bridge.reporting import StatusPrinter
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.recording.bag_writer import check_new
from embodied_rl.deployment.recording.process import start_recorder
from embodied_rl.deployment.recording.recorder import RecorderSettings
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.signals import catch_stop_signals

RECORDER_DISCOVERY_S = 5.0
"""Longest wait for the recorder's subscriptions; a slower recorder misses the first control steps."""


def check_bridge(config: BridgeConfig) -> list[tuple[str, str]]:
    """Check everything that needs neither the robot nor the server; return the rows of a dry run."""
    robot = load_robot(config.robot)
    check_settings(config, robot)
    make_motion_manager(config, robot)
    return [
        ("robot", f"{robot.name}: {robot.verified}"),
        ("commands", f"{', '.join(each.name for each in robot.command_topics.values())}, {robot.command_hz:g} Hz"),
    ]


def check_settings(config: BridgeConfig, robot: RobotDescription) -> None:
    """Check that settings fit together; raises `UserError`."""
    if config.policy is None:
        if not robot.operator.teleop or config.lockstep:
            raise UserError(
                f"policy is missing. Teleoperation alone needs operator.teleop in the file of {robot.name}, and "
                "lockstep=false. Give policy=ws://…, or correct that.",
                code="policy-missing",
            )
    elif not config.policy.startswith(("ws://", "wss://")):
        raise UserError(
            f"policy={config.policy} is not the address of a policy server. Start one, embodied-rl serve policy=…, and "
            "give its address, ws://…; or use embodied-rl deploy, which starts one.",
            code="policy-address-invalid",
        )
    if config.lockstep and config.dry_run:
        raise UserError(
            "lockstep=true: the robot waits for commands, and dry_run=true gives none. Leave one out.",
            code="keys-contradict",
        )
    if config.episodes and not (robot.operator.reset and robot.operator.outcome):
        raise UserError(
            f"episodes=true needs operator.reset and operator.outcome in the file of {robot.name}.",
            code="episode-topics-missing",
        )
    if config.record is not None:
        check_new(Path(config.record))


def run_bridge(config: BridgeConfig) -> int:
    """Drive a robot until a signal, bring it to rest, and return the exit code.

    Raises:
        UserError, NoPolicyAnswer: something does not fit, or the server does not answer; the robot has not moved.
    """
    robot = load_robot(config.robot)
    check_settings(config, robot)
    motions = make_motion_manager(config, robot)
    with ExitStack() as stack:
        client = None if config.policy is None else stack.enter_context(closing(open_policy(config, robot)))
        node = stack.enter_context(open_transport(config.transport, "policy_bridge"))
        bridge = Bridge(config, robot, node, client, motions=motions)
        bridge.prepare()  # nothing is commanded yet: signals end the process at once
        recorder = None
        if config.record is not None:  # after all checks; it finishes its file even if the bridge is killed
            before, settings = bridge.reporter.count_listeners(), RecorderSettings(transport=config.transport)
            recorder = stack.enter_context(start_recorder(robot, Path(config.record), settings))
            wait_until(node, lambda: bridge.reporter.count_listeners() > before, RECORDER_DISCOVERY_S)
        printer = stack.enter_context(StatusPrinter())
        bridge.print_status, bridge.print_line = printer.update, printer.add_line
        stopped = stack.enter_context(catch_stop_signals())
        stack.enter_context(low_latency_interpreter())
        bridge.run(stopped.is_set)
        print("The bridge has ended; the robot is at rest." if not config.dry_run else "The bridge has ended.")
        if recorder is not None:
            print("Recorded: " + "; ".join(recorder.stop().list_lines()))
            print(f"To make a dataset: embodied-rl collect from={recorder.folder} out=<folder>", flush=True)
        for line in motions.close():
            printer.add_line(line)
    return 0
