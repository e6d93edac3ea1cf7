"""The configurations of a robot's commands: bridge, record, doctor and contract."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text, Trust

Joining = Literal["auto", "prefix", "naive", "blend", "stop"]
Transport = Literal["dds", "rclpy"]


@dataclass(frozen=True)
class ServedNode:
    """A policy behind a server that an evaluation asks."""

    keys: dict[Text, Text] = field(default_factory=dict)
    """How the server calls entries of observations, our name: its name, such as {images/front: observation/image}. A
    state that it takes as several entries: their names and sizes, a:7+b:1."""
    actions: Text = "actions"
    """How a server of others calls the actions in its answer."""
    deadline: float = at_least(0.1, 60.0)
    """Seconds for each question, connecting again included."""
    token_variable: SecretName | None = None
    """Environment variable that holds the server's token."""


@dataclass(frozen=True)
class BridgeConfig:
    robot: FilePath
    """The robot: a name that `embodied-rl list robots` shows, or a YAML file."""
    policy: Address | None = None
    """Who acts: the address of a policy server, ws://…; `embodied-rl serve` starts one. null: the operator alone, by
    teleoperation, such as to record demonstrations with record=<folder>."""
    dry_run: bool = False
    """Subscribe, infer and filter, and publish nothing but the status: the robot is not commanded."""
    transport: Transport = "dds"
    """How messages travel: dds, which needs no ROS 2; rclpy, by the ROS 2 that is installed."""
    strategy: Joining = "auto"
    """How a new chunk joins the actions that are executed during inference; see `eval strategy=…`. auto: prefix where
    the policy was trained on as many steps as an inference takes, else naive; in lockstep stop."""
    replan: int | None = at_least(1, None)
    """Control steps between two inferences; null: as often as inference allows, in lockstep as the policy executes."""
    instruction: Text | None = None
    """The words of the task, for a robot without a topic for them."""
    lockstep: bool = False
    """For a simulated robot that waits for each command: one command for each observation, and no time between."""
    deadman: Annotated[bool, Trust.CODE] = True
    """The dead man's switch must be held, where the robot's file names one; false is for simulated robots alone."""
    priority: bool = True
    """Ask the system for real-time priority of the control loop; without permission it has ordinary priority."""
    episodes: bool = False
    """Act in episodes alone: from when one is asked for over the robot's topics until its outcome."""
    seed: int | None = at_least(0, None)
    """Fixes the policy's noise in episodes that are asked for over topics, and which return points are drawn; null:
    chunks start from the noise's mean, and each start draws other points."""
    requests: int = at_least(2, 20, at_most=1000)
    """Requests by which the policy's latency is measured before the robot moves."""
    patience: float = at_least(0.1, 20.0)
    """Seconds that the robot's topics, and the policy's first answer, may take to appear."""
    seconds: float | None = at_least(0.0, None)
    """Leave after so many seconds; null: at Ctrl-C."""
    record: FilePath | None = None
    """New folder of a recording of all topics, made by another process; `collect from=` makes a dataset of it."""
    return_points: FilePath | None = None
    """File of return points (JSON), made with the first one. The operator's button go_back sends the robot to one of
    the task, the more likely the more often the task failed from there; store adds the present place."""
    replay: FilePath | None = None
    """Demonstration that the operator's button replay plays: an episode's .npz file of `collect`, or the folder of a
    recording. Without return_points, the button go_back goes to where it begins."""
    replay_episode: int | None = at_least(0, None)
    """Which episode of a recording's folder is replayed, its number in `collect from=`; null: the only one."""
    server: ServedNode = field(default_factory=lambda: ServedNode(deadline=10.0))
    """How the policy's server is asked. Its deadline holds for the first answer; while the robot moves, an answer has
    as long as it is of use."""


@dataclass(frozen=True)
class RecordConfig:
    robot: FilePath = "tabletop"
    """Whose topics are recorded: a name of configs/robot, or a YAML file."""
    out: FilePath = "recording"
    """Folder of the recording, which must be new."""
    seconds: float | None = at_least(0.0, None)
    """Record for so long; null: until Ctrl-C."""
    transport: Transport = "dds"
    """dds needs no ROS 2; rclpy uses the one that is installed."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Of what is written: none is quickest, lz4 costs little, zstd takes the least space."""
    split_mb: int = at_least(1, 1024)
    """MiB after which another file is begun."""
    split_minutes: float = at_least(0.01, 10.0)
    """Minutes after which another file is begun."""
    queue_mb: int = at_least(1, 256)
    """MiB that may wait to be written; what comes on top of it is dropped and counted."""
    silent: float = at_least(0.1, 5.0)
    """Seconds after which topics that have said nothing are named."""
    recover: FilePath | None = None
    """Folder of a recording whose recorder was killed: what is whole of it is written to `out`; nothing is recorded."""


@dataclass(frozen=True)
class ContractConfig:
    robot: FilePath | None = None
    """A robot to write as a contract of rosetta: a name, or a YAML file."""
    contract: FilePath | None = None
    """A contract of rosetta to write as a robot's file."""
    out: FilePath | None = None
    """The file to write; null prints it."""
    replace: bool = False
    """Write over a file that is there."""


@dataclass(frozen=True)
class RobotDoctorConfig:
    robot: FilePath | None = None
    """A robot whose topics are examined: a name, or a YAML file."""
    policy: Address | None = None
    """ws://<host>:<port>: a policy server for that robot, whose fit and latency are checked."""
    transport: Transport = "dds"
    """How the robot's topics are reached: without an installation of ROS 2, or with it."""
    seconds: float = at_least(0.5, 3.0, at_most=600)
    """How long rates are measured."""
    questions: int = at_least(1, 50)
    """Questions to the policy server, the first ones besides."""
    server: ServedNode = field(default_factory=ServedNode)
    """How the policy server is asked."""
