"""The configurations of commands about robots that need the training platform: serve, deploy, robot and convert."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.deployment.configuration import Joining, Transport
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text, Trust
from embodied_rl.schema.nodes import SimNode


@dataclass(frozen=True)
class ServeConfig:
    policy: FilePath
    """Who acts, also as a plain word: a run folder, a checkpoint file, or asset:<name>."""
    follow: bool = False
    """Of a run that trains: answer with its newest weights, swapped in between two answers."""
    host: Address = "127.0.0.1"
    """Address to listen on. Another than this machine's own needs a token."""
    port: int = at_least(0, 8000, at_most=65535)
    """Port to listen on; 0 takes a free one."""
    token_variable: SecretName | None = None
    """Environment variable that holds the token which clients must send as their API key."""
    keys: dict[Text, Text] = field(default_factory=dict)
    """How clients call entries of observations, our name: their name, such as {images/front: observation/image}.
    Several of their names may be joined for the state: a+b. What is not here has our name."""
    ignore: tuple[Text, ...] = ()
    """Entries of clients' observations that are left out; others that the policy does not know are refused."""
    send: Literal["horizon", "executed"] = "horizon"
    """Actions that clients of other projects get: all that the policy predicts, as openpi's server sends them, or those
    that are meant to be executed before the next question. Clients of embodied-rl get the latter, unless they ask."""
    metadata: Annotated[dict[str, Any], Trust.PLAIN] = field(default_factory=dict)
    """What clients get when they connect, in place of the policy's description: RoboArena's and DreamZero's want their
    server's configuration there, such as {image_resolution: [224, 224], n_external_cameras: 1, …}."""
    device: Text = "cpu"
    """Where the policy computes: cpu, cuda or cuda:<number>."""
    threads: int | None = at_least(1, None)
    """Processor threads of the policy; null: all cores but one, which answers the network."""
    batch: int = at_least(1, 8)
    """Most requests that are answered together. While several clients are connected they are filled up to multiples
    of 4 rows, so that no answer depends on what others ask; 1: one after the other, and nothing is filled up."""
    wait_ms: float = at_least(0.0, 4.0)
    """Milliseconds that a request waits for those of other clients that are connected."""
    clients: int = at_least(1, 64, at_most=1024)
    """Most connections."""
    message_mb: int = at_least(1, 16, at_most=1024)
    """Largest message in MiB."""
    deadline: float = at_least(0.1, 30.0)
    """Seconds after which a request without an answer is given up."""


@dataclass(frozen=True)
class DeployConfig:
    policy: FilePath
    """Who acts, also as a plain word: a run folder, a checkpoint file, or asset:<name>."""
    robot: FilePath = "tabletop"
    """The simulated robot: a name that `embodied-rl list robots` shows, or a YAML file."""
    episodes: int = at_least(1, 24, at_most=10_000)
    """Episodes, the same ones as those of `eval` with the same seed, split and task."""
    lockstep: bool = False
    """The robot waits for each command, and the policy's inference takes no time: equal to `eval`."""
    seed: int = at_least(0, 0)
    """Fixes the episodes and the policy's noise."""
    split: Text = "eval"
    """eval (training conditions, other seeds), or one of the simulator's held-out splits."""
    task: Text | None = None
    """Only this task, or this family; null for all."""
    episodes_for: Literal["report", "publish"] = "report"
    """report: the episodes of every report; publish: others, for figures that you publish."""
    transport: Transport = "dds"
    """How messages travel: dds, which needs no ROS 2; rclpy, by the ROS 2 that is installed."""
    strategy: Joining = "auto"
    """How a new chunk joins the actions that are executed during inference; see `bridge strategy=…`."""
    replan: int | None = at_least(1, None)
    """Control steps between two inferences; see `bridge replan=…`."""
    film: bool = True
    """Film the first episodes from the robot's camera."""
    record: bool = False
    """Record all topics into the report's folder; `collect from=` makes a dataset of it."""
    out: FilePath = "deploy"
    """Folder below which the report's folder is made."""


@dataclass(frozen=True)
class FaultsNode:
    """What is wrong with a simulated robot; also a message on /simulation/faults, as JSON of these keys."""

    states: Literal[
        "none", "frozen", "nan", "dropped", "duplicated", "delayed", "reordered", "other_order", "missing_joint"
    ] = "none"
    """Of joint states and poses. frozen: the same values with new stamps; nan: no numbers; reordered: each two change
    places; other_order: the joints' names and values begin with the last; missing_joint: the last one is not there."""
    cameras: Literal["none", "frozen", "frozen_stamps", "dead", "delayed"] = "none"
    """Of pictures. frozen: the same picture with new stamps; frozen_stamps: with its old stamp, too; dead: none
    come."""
    share: float = at_least(0.0, 1.0, at_most=1.0)
    """Of the messages that nan, dropped and duplicated befall, drawn from `seed`."""
    delay: float = at_least(0.0, 0.2, at_most=60.0)
    """Seconds by which delayed messages come late; their stamps are right."""
    clock_jump: float = at_least(-1e6, 0.0, at_most=1e6)
    """Seconds by which all stamps and /clock are wrong from now on."""
    command_delay: float = at_least(0.0, 0.0, at_most=60.0)
    """Seconds until a command takes effect; in real time alone."""
    restart: float = at_least(0.0, 0.0, at_most=60.0)
    """Above 0: the robot's node leaves all topics now, and comes back after so many seconds with no command and no
    episode's end."""
    seed: int = at_least(0, 0)
    """Of what befalls which message."""


@dataclass(frozen=True)
class RobotConfig:
    sim: SimNode
    """Who simulates it."""
    robot: FilePath = "tabletop"
    """Its description: a name of `configs/robot`, or the path of a YAML file."""
    transport: Transport = "dds"
    """dds needs no ROS 2; rclpy uses the one that is installed."""
    lockstep: bool = False
    """Time stands still until a command comes, which makes exactly one control step of the simulator."""
    task: Text | None = None
    """Of the episode that is there when it starts, or its family; null takes the first. /simulation/reset asks for
    others."""
    seed: int = at_least(0, 0)
    """Of that episode."""
    split: Text = "train"
    """Conditions of that episode."""
    episodes: int | None = at_least(1, None)
    """End after so many episodes; null: at a signal."""
    timeout: float | None = at_least(0.008, None)
    """Seconds without a command after which the robot stops by itself; null takes its description's
    command.timeout_s."""
    deadline: float = at_least(0.1, 60.0)
    """In lockstep: seconds until an episode that gets no command is given up."""
    faults: FaultsNode = field(default_factory=FaultsNode)
    """What is wrong with it from the start."""
    film: Annotated[Path, Trust.PATH] | None = None
    """Write a film of the episodes that ended, as their first camera saw them, to this .mp4 file."""


@dataclass(frozen=True)
class ConvertConfig:
    recording: FilePath
    """Folder of a recording, also as a plain word, or one MCAP or SQLite file; also an ordinary one of `ros2 bag`."""
    robot: FilePath | None = None
    """The robot that was recorded: a name of configs/robot, or a YAML file; null takes what the recording says."""
    out: FilePath = "demonstrations"
    """Folder that is written, which must hold nothing of the kind yet."""
    format: Literal["lerobot", "replay"] = "lerobot"
    """lerobot: a LeRobotDataset v3.0, which needs the extra embodied-rl[lerobot]; replay: a replay storage."""
    images: Literal["video", "png"] = "video"
    """Pictures of format=lerobot: video loses detail and colour; png loses nothing and takes more space."""
    instruction: Text | None = None
    """Words of the task, where the recording does not say them."""
    aborted: bool = False
    """Keep episodes that the operator aborted, as if time had ended them."""
