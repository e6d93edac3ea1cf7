"""`embodied-rl convert`, also typed `collect from=`: a recording of a robot converted to episodes for training.

<out>/index.jsonl    one line per episode, or part of one: steps, label, instruction, source of the actions
"""

import json
from pathlib import Path

from embodied_rl.datasets.lerobot.collected import write_dataset
from embodied_rl.deployment.recording.bag_writer import check_new
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.rollout.replay.recorded_episodes import write_replay
from embodied_rl.schema import ConvertConfig
from embodied_rl.system.atomic_write import write_text


def run(config: ConvertConfig) -> None:
    """Convert a recording, and print what was kept and what was left out.

    Raises:
        UserError: the recording is missing, damaged or without episodes, or `out` is not new.
    """
    conversion, out = check_start(config), Path(config.out)
    writes = (
        write_replay(conversion, out) if config.format == "replay" else write_dataset(conversion, out, config.images)
    )
    lines = [json.dumps(line) + "\n" for line in writes]
    if not lines:
        notes = "; ".join(conversion.list_lines())
        raise UserError(
            f"{config.recording}: nothing could be converted, and {out} holds no episode. {notes}.",
            code="recording-without-episodes",
        )
    write_text(out / "index.jsonl", "".join(lines), "out")
    for line in conversion.list_lines():
        print(line)
    print(f"{len(lines)} episodes in {out}")


def check_start(config: ConvertConfig) -> Conversion:
    """Read which episodes the recording holds; see `run`."""
    check_new(Path(config.out))
    robot = None if config.robot is None else load_robot(config.robot)
    messages = Messages(read_environment().distro)
    return Conversion.open(Path(config.recording), messages, robot, config.aborted, config.instruction or "")


def check_conversion(config: ConvertConfig) -> list[tuple[str, str]]:
    """Check for a dry run; return what would be converted."""
    conversion = check_start(config)
    return [
        ("robot", conversion.robot.name),
        ("episodes", str(len(conversion.episodes))),
        ("steps", str(conversion.steps)),
    ]
