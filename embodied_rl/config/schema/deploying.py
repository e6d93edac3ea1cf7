"""The configurations of the commands `bridge` and `deploy`: a policy that drives a robot over ROS 2."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.config.schema.serving import ServedNode
from embodied_rl.interfaces.trust import Address, FilePath, Text, Trust

Joining = Literal["auto", "prefix", "naive", "blend", "stop"]
Carrier = Literal["dds", "rclpy"]


@dataclass(frozen=True)
class BridgeConfig:
    robot: FilePath
    """The robot: a name that `embodied-rl list robots` shows, or a YAML file."""
    policy: Address | None = None
    """Who acts: the address of a policy server, ws://…; `embodied-rl serve` starts one. null: the operator alone, by
    teleoperation, such as to record demonstrations with record=<folder>."""
    dry_run: bool = False
    """Subscribe, infer and filter, and publish nothing but the status: the robot is not commanded."""
    transport: Carrier = "dds"
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
    transport: Carrier = "dds"
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
