"""A recorder beside the bridge: it starts before the robot moves, and finishes its file even if that is killed."""

from pathlib import Path

from embodied_rl.deployment.bridge.checks import wait_until
from embodied_rl.deployment.bridge.reporting import BridgeReporter
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.recording.process import RecorderProcess, start_recorder
from embodied_rl.deployment.recording.recorder import RecorderSettings
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.interface import Transport

HEARD_S = 5.0
"""Seconds that a recorder may take to be found; one that is slower misses the first control steps."""


def start_recording(
    config: BridgeConfig, robot: RobotDescription, node: Transport, reporter: BridgeReporter
) -> RecorderProcess:
    """Start a recorder, and wait until it hears the bridge.

    Call it once everything was checked, so that a bridge which is refused leaves no folder behind.

    Raises:
        UserError: the folder is not new, or the recorder does not start.
    """
    assert config.record is not None, "the caller asked"
    before = reporter.count_listeners()
    recorder = start_recorder(robot, Path(config.record), RecorderSettings(transport=config.transport))
    wait_until(node, lambda: reporter.count_listeners() > before, HEARD_S)
    return recorder


def end_recording(recorder: RecorderProcess) -> None:
    """End a recording, and say what became of it and what can be done with it.

    Raises:
        UserError: the recorder failed, such as on a full disk; the robot was driven all the same.
    """
    print("Recorded: " + "; ".join(recorder.stop().list_lines()))
    print(f"A dataset of it: embodied-rl collect from={recorder.folder} out=<folder>", flush=True)
