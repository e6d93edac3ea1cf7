"""The configuration of each command."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.deployment.configuration import RobotDoctorConfig, ServedNode
from embodied_rl.interfaces.trust import Code, FilePath, Text, Trust
from embodied_rl.schema.nodes import (
    MOST_EPISODES,
    AlgoNode,
    BenchmarkNode,
    CheckpointConfig,
    CurriculumNode,
    FilterNode,
    LoggerNode,
    Plan,
    PolicyNode,
    ReplayNode,
    RewardNode,
    RunConfig,
    SimChange,
    SimNode,
    TrainLoop,
)

Joining = Literal["prefix", "naive", "blend", "stop", "replacement", "guided"]
"""How a new chunk joins the actions that are executed while it is inferred."""
OWN_CLUSTERS = frozenset({"auto", "local"})
"""Clusters of this machine, which are no addresses. Who connects to another one runs what it sends."""
PolicySource = Annotated[str, Trust.PATH, frozenset({"expert", "random"})]
"""Who acts: a policy's file or run, where `eval` also takes an address; or one of these words."""
LAST_SEED = 2**64 - 1
"""The largest seed that the sources of random numbers take."""


@dataclass(frozen=True)
class TrainConfig:
    sim: SimNode
    """The simulator."""
    policy: PolicyNode
    """The policy."""
    algo: AlgoNode
    """The algorithm."""
    replay: ReplayNode = field(default_factory=ReplayNode)
    """The stored experience of an algorithm that learns from replay."""
    curriculum: CurriculumNode = field(default_factory=CurriculumNode)
    """Which tasks are drawn."""
    reward: RewardNode = field(default_factory=RewardNode)
    """Who judges progress, beside the simulator's reward."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes every random choice of the run."""
    resume: FilePath | None = None
    """Continue a run: "last", or its folder."""
    mode: Literal["sync", "stream", "async"] = "sync"
    """sync: collect, then learn; stream: learn from a rollout while rollout workers make the rest of it; async: rollout
    workers collect while the ranks learn, `staleness` versions ahead."""
    segments: int = at_least(2, 4)
    """stream: so many parts, of train.decisions / segments decisions each, make a rollout; the first epoch learns from
    one after the other. Where a method wants whole episodes, each of them is a rollout of these."""
    staleness: int = at_least(0, 1)
    """async: by how many versions the weights that decided may be older than those that learn from it; 0 is sync."""
    runtime: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: actors on a cluster, which needs the extra embodied-rl[ray]."""
    cluster: Annotated[str, Trust.ADDRESS, OWN_CLUSTERS] = "auto"
    """ray: address of a cluster, such as 10.0.0.1:6379; auto: the one this machine belongs to, or else, as with local,
    one that is begun here and ends with the run."""
    run: RunConfig = field(default_factory=RunConfig)
    """Where the run lives."""
    train: TrainLoop = field(default_factory=TrainLoop)
    """How long, and when to evaluate."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When to save."""
    plan: Plan = field(default_factory=Plan)
    """Which process does what."""
    logger: LoggerNode = field(default_factory=LoggerNode)
    """What is reported while it runs."""


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    costs: FilePath | None = None
    """File of stage costs to plan with; null measures them here."""
    resources: Text | None = None
    """Cores and accelerators to plan for, such as 8xgpu:80GB or 2xcore; null takes this machine."""
    out: FilePath = "plan"
    """Folder of costs.json (what was measured) and plan.json (the table and the choice)."""


@dataclass(frozen=True)
class Video:
    episodes: int = at_least(0, 16)
    """Episodes in the tiled video; 0 makes no video."""
    best: int = at_least(0, 2)
    """Quickest successes shown on their own."""
    worst: int = at_least(0, 2)
    """Failures shown on their own."""


@dataclass(frozen=True)
class EvalConfig:
    policy: PolicySource | None = None
    """Who acts: a run folder, a checkpoint file, asset:<name>, hf:<owner>/<name>, the address of a server (ws://…),
    expert or random."""
    checkpoint: PolicySource | None = None
    """Another name for `policy`."""
    policies: dict[Text, PolicySource] = field(default_factory=dict)
    """For a benchmark whose tasks no single policy can run: task or family → its policy. Tasks without one do not run,
    and the report says so."""
    benchmark: BenchmarkNode | None = None
    """Exactly which tasks, initial states and seeds; `embodied-rl list benchmarks` shows them. Null draws episodes."""
    sim: SimChange = field(default_factory=SimChange)
    """What is other than in the checkpoint's simulator, or the benchmark's."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes the drawn episodes and the policy's noise."""
    episodes: int | None = at_least(1, None, at_most=MOST_EPISODES)
    """Episodes in all, spread evenly over families, then tasks; null takes 512, or the whole benchmark. Fewer than the
    whole are no longer that benchmark, and the report says so."""
    split: Text = "eval"
    """eval (training conditions, other seeds), or one of the simulator's held-out splits; not for a benchmark."""
    task: Text | None = None
    """Only this task, or this family; null for all."""
    episodes_for: Literal["report", "publish"] = "report"
    """report: the episodes of every report, by which settings are compared; publish: others, which no run and no report
    ever shows. Look at these once, for the figures you publish. Not for a benchmark, which has episodes of its own."""
    ablate: Literal["none", "image", "instruction"] = "none"
    """Show blank images, or the instruction of another episode, to see whether the policy needs them."""
    delay: int = at_least(0, 0, at_most=1000)
    """Control steps that an inference takes: the robot goes on meanwhile, or holds still. 0: actions begin at once."""
    strategy: Literal["auto", "prefix", "naive", "blend", "stop", "replacement", "guided"] = "auto"
    """How a new chunk joins the actions that are executed during inference. prefix: the policy continues them, which it
    was trained for; naive: it replaces them; blend: both are mixed over three steps; stop: the robot holds still
    during inference; replacement, guided: the policy continues them untrained, experimental. auto: prefix where the
    policy was trained on as many steps, else naive. Without a delay nothing has to be joined."""
    replan: int | None = at_least(1, None)
    """Control steps between two inferences, for stop: actions of a chunk that are executed. null: as often as inference
    allows; for stop, and without a delay, as many as the policy's file says."""
    hold: tuple[float, ...] | None = None
    """The action with which the robot holds still, for a simulator that does not say; it does for its first chunk."""
    resume: FilePath | None = None
    """Continue an evaluation that ended early: its folder. Only what is missing runs."""
    out: FilePath | None = None
    """Folder of the report; null puts it beside the run, or into eval/ here."""
    format: Literal["report", "vla_eval"] = "report"
    """vla_eval: beside the report, write the results as vla_eval.json, in the format of vla-eval 0.8."""
    reported: float | None = at_least(0.0, None, at_most=1.0)
    """Success rate that was published for this, from 0 to 1. The report says whether the 95 % interval holds it
    (reproduced), or the difference is at most 5 points (close), or not (differs)."""
    video: Video = field(default_factory=Video)
    """What is filmed."""
    server: ServedNode = field(default_factory=ServedNode)
    """How a policy behind a server is asked, for policy=ws://…"""
    plan: Plan = field(default_factory=Plan)
    """Which process does what."""
    overrides: tuple[Text, ...] = ()
    """What was typed; the command line fills it in."""


@dataclass(frozen=True)
class CompareConfig:
    runs: tuple[FilePath, ...]
    """Run folders or report files; given as plain words on the command line."""
    out: FilePath = "comparison"
    """Folder of the table (Markdown and HTML) and the curves."""


@dataclass(frozen=True)
class WatchConfig:
    runs: tuple[FilePath, ...] = ()
    """Folders of runs, given as plain words; without any, the newest below `root`."""
    root: FilePath = "runs"
    """Folder of all runs."""
    port: int = at_least(0, 8090, at_most=65535)
    """Port of the page on this machine; 0 takes a free one."""


@dataclass(frozen=True)
class FiguresConfig:
    runs: tuple[FilePath, ...] = ()
    """Folders of finished runs and evaluations to track, as plain words; without any, figures are only redrawn."""
    group: Text | None = None
    """Folder below `results` of the tracked runs, such as flow_sde; null takes the name of the run's experiment. An
    evaluation needs one of its own."""
    results: FilePath = "results"
    """Folder of tracked runs, with figures.yaml; plots and tables lie relative to the folder that holds it."""


@dataclass(frozen=True)
class SftConfig:
    sim: SimNode
    """The simulator that the policy is evaluated in, and, without a dataset, that demonstrations are collected in."""
    policy: PolicyNode
    """The policy."""
    algo: AlgoNode
    """Supervised fine-tuning: its demonstrations, stages, learning rates and steps."""
    dataset: FilePath | None = None
    """Folder of a LeRobotDataset v3.0 to clone, or hf:<owner>/<name>[@revision]; null records the simulator's
    operator."""
    sources: tuple[Text, ...] | None = None
    """Whose steps of the dataset are cloned: those of policy, human, replay, safety, hold; null takes all but hold."""
    reward: RewardNode = field(default_factory=RewardNode)
    """The scorer that demonstrations are filtered by; with reward.mode=audit it only says what would be left out."""
    filter: FilterNode = field(default_factory=FilterNode)
    """Which demonstrations are left out; null thresholds leave out none."""
    task: Text | None = None
    """Only this task, or this family, is demonstrated by the operator and evaluated; null for all."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes every random choice."""
    run: RunConfig = field(default_factory=RunConfig)
    """Where the run lives."""
    eval_episodes: int = at_least(0, 512, at_most=MOST_EPISODES)
    """Episodes of the evaluation after the weights were saved; 0 leaves it out, and needs no simulator."""
    film: bool = True
    """Film some of those episodes, which takes ffmpeg and a simulator that shows something."""
    export: FilePath | None = None
    """File that also receives the weights in half precision; null writes none."""
    plan: Plan = field(default_factory=Plan)
    """Which process does what."""


@dataclass(frozen=True)
class ImportConfig:
    sim: SimNode
    """The simulator that the policy is attached to."""
    policy: PolicyNode
    """The policy, and in `checkpoint` the folder of lerobot's or openpi's."""
    out: FilePath = "imported.safetensors"
    """The policy file that is written."""


@dataclass(frozen=True)
class ExportConfig:
    checkpoint: FilePath
    """What to export: a run folder, or a policy file."""
    format: Literal["lerobot", "openpi", "gr00t", "openvla", "peft"] = "lerobot"
    """Whose checkpoint it becomes; peft: the adapters of policy.train=lora alone, for the checkpoint `base`."""
    base: FilePath | None = None
    """For format=peft, what the adapters were trained on: a folder of lerobot's, or its name on the hub."""
    dtype: Literal["source", "float32"] = "source"
    """Type of the tensors: as in the checkpoint the policy came from, which rounds what was learned; or float32."""
    out: FilePath | None = None
    """Folder it is written to, new or empty; null takes <format>_checkpoint here."""
    to: FilePath | None = None
    """hf:<owner>/<name>[@branch][:folder]: upload the folder there, too, with a model card made from the run's report.
    A new repository is private. HF_TOKEN is your token."""


@dataclass(frozen=True)
class InspectConfig:
    checkpoint: FilePath
    """What to look at, given as a plain word: a run folder, a policy file, a folder of lerobot's or openpi's, or
    hf:<owner>/<name>."""
    tensors: bool = False
    """Whether to check all tensors, too: another project's against the network, those of a policy file against their
    checksum."""
    embodiment: Text | None = None
    """The robot, if a folder of another project has several: what `train` takes as policy.embodiment=<tag>, or as
    policy.statistics=<name>; null takes the only one."""


@dataclass(frozen=True)
class CollectConfig:
    sim: SimNode
    """The simulator."""
    policy: PolicySource = "expert"
    """Who acts: expert, random, a run folder, a checkpoint file, or asset:<name>."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes the episodes and every random choice."""
    episodes: int = at_least(1, 100, at_most=MOST_EPISODES)
    """Episodes to collect."""
    split: Text = "train"
    """Conditions the episodes are drawn from."""
    task: Text | None = None
    """Only this task, or this family; null for all."""
    out: FilePath = "demonstrations"
    """Folder the episodes are written to."""
    reward: RewardNode = field(default_factory=RewardNode)
    """The scorer that episodes are filtered by; with reward.mode=audit it only says what would be left out."""
    filter: FilterNode = field(default_factory=FilterNode)
    """Which episodes are left out; null thresholds leave out none."""
    format: Literal["npz", "lerobot", "replay"] = "npz"
    """npz: one file an episode; lerobot: a LeRobotDataset v3.0, which needs the extra embodied-rl[lerobot]; replay: a
    replay storage, which replay.preload of train reads."""
    images: Literal["video", "png"] = "video"
    """Pictures of format=lerobot: video loses detail and colour; png loses nothing and takes more space. Other formats
    hold pictures as they are."""
    plan: Plan = field(default_factory=Plan)
    """Which process does what."""


@dataclass(frozen=True)
class ViewConfig:
    source: FilePath
    """Whose episodes, given as a plain word: the folder of a LeRobotDataset, also as hf:<owner>/<name>, of a
    replay storage, or of a run; the policy of a run that stores none plays episodes of its report."""
    out: FilePath = "episodes.rrd"
    """The recording that is written, for Rerun's viewer."""
    episodes: tuple[int, ...] | None = None
    """Which, by number from 0 in order of time, negative ones from the end; null takes the last 16."""
    images: Literal["png", "jpeg"] = "png"
    """Pictures: png loses nothing; jpeg loses detail and takes less space."""


@dataclass(frozen=True)
class PlayConfig:
    sim: SimNode
    """The simulator."""
    policy: PolicySource = "expert"
    """Who acts: expert, random, a run folder, a checkpoint file, or asset:<name>."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes the episodes and every random choice."""
    split: Text = "train"
    """Conditions the episodes are drawn from."""
    task: Text | None = None
    """Only this task, or this family; null for all."""
    out: FilePath = "play"
    """Folder of the videos."""


@dataclass(frozen=True)
class BenchConfig(TrainConfig):
    what: Text = "sim"
    """What is measured, the first word after `bench`: a simulator, algorithms, delay, deploy or potentials."""
    seconds: float = at_least(0.1, 10.0)
    """Length of each measurement."""
    arms: tuple[Text, ...] = ("sparse", "oracle", "embedded", "inverted", "rises")
    """For `bench potentials`: the rewards that are compared; there is hackable, too."""
    algorithms: tuple[Text, ...] = ("flow_sde", "flow_noise", "grpo", "nft", "filtered", "awr", "recap", "dsrl")
    """For `bench algorithms`: the choices of `algo` that are compared."""
    seeds: int = at_least(1, 3)
    """For `bench algorithms` and `bench potentials`: runs of each arm, with seeds from `seed` on."""
    decisions: int = at_least(1, 100_000)
    """For `bench algorithms` and `bench potentials`: length of each run, rounded up to whole rollouts."""
    replay_decisions: int | None = at_least(1, None)
    """For `bench algorithms`: the same for algorithms that learn from replay, which learn longer from a decision; null
    takes `decisions`."""
    target: float = at_least(0.0, 0.6, at_most=1.0)
    """For `bench potentials`: the success while exploring of which is told when it was reached."""
    policy_file: FilePath | None = None
    """For `bench delay` and `bench deploy`: whose policy, a run folder, a file or asset:<name>; null takes ours."""
    episodes: int = at_least(1, 384, at_most=MOST_EPISODES)
    """For `bench delay`: episodes of each combination; for `bench deploy` at most 48 of them are run, twice."""
    delays: tuple[int, ...] = (0, 1, 2, 3, 4)
    """For `bench delay`: control steps that an inference takes."""
    strategies: tuple[Joining, ...] = ("prefix", "naive", "blend", "stop", "replacement", "guided")
    """For `bench delay`: how a new chunk joins the actions that are executed meanwhile; see `eval strategy=…`."""
    out: FilePath = "bench"
    """Folder of bench_<what>.json."""


@dataclass(frozen=True)
class TraceConfig:
    folder: FilePath = "last"
    """The run, given as a plain word: its folder, or "last" for the newest below runs/."""
    iteration: int | None = at_least(1, None)
    """Which iteration; null takes the newest that was kept. One is kept with each checkpoint."""
    file: FilePath | None = None
    """Where the trace goes; null puts it into the run's folder."""


@dataclass(frozen=True)
class DoctorConfig(RobotDoctorConfig):
    sim: SimNode | None = None
    """A simulator to examine as well: its environment, packages, assets and renderer."""
    run: RunConfig = field(default_factory=RunConfig)
    """Where runs would live."""


@dataclass(frozen=True)
class EnvironmentConfig:
    words: tuple[Text, ...] = ()
    """What to do and for which simulator: install <simulator>."""
    python: Code | None = None
    """Interpreter to make the environment with; null takes this one or, where it does not suit, python3.12 of PATH."""
    pip: tuple[Code, ...] = ()
    """Further options of each `pip install`, such as an index."""
    accept_licence: bool = False
    """You accept the licence of the simulator, where it asks."""
    replace: bool = False
    """Make it anew where it is there already."""
    keep: bool = False
    """Where it is there already and was made with today's pins, leave it and say so; with other pins, make it anew."""
