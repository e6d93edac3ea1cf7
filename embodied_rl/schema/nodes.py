"""The groups of keys that several commands share."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from embodied_rl.config.freeze import at_least, take_other_keys
from embodied_rl.interfaces.trust import Code, FilePath, Text, Trust

MOST_EPISODES = 1_000_000
"""Episodes of one command at most: more would take longer than any run, and tell nothing more."""


@dataclass(frozen=True)
class RunConfig:
    root: FilePath = "runs"
    """Folder of all runs; each run makes <root>/<experiment>/<time>_s<seed>/ of its own."""
    experiment: Text = ""
    """Name of the run; by default that of the chosen experiment, or of the command."""
    overrides: tuple[Text, ...] = ()
    """What was typed; the command line fills it in."""


@dataclass(frozen=True)
class SimNode:
    kind: ClassVar[str] = "sims"
    name: Text
    """Simulator; `embodied-rl list sims` shows them."""
    num_envs: int = at_least(1, 64)
    """Environments in all, over every rank, slice and worker."""
    python: Code | None = None
    """Interpreter of the Python environment the simulator lives in; null takes the one that `embodied-rl sim install`
    made for it, or this one."""
    pythonpath: tuple[Code, ...] = ()
    """Folders that this interpreter imports from, besides its own packages."""
    options: dict[str, Any] = take_other_keys()
    """The simulator's own keys."""


@dataclass(frozen=True)
class SimChange:
    name: Text | None = None
    """Simulator; null takes the one of the checkpoint, or of the benchmark."""
    options: dict[str, Any] = take_other_keys()
    """Further keys of `sim`, the simulator's own among them; what is not given stays as it was."""


@dataclass(frozen=True)
class BenchmarkPart:
    sim: Annotated[dict[str, Any], Trust.PLAIN]  # `evaluate.benchmark` checks it as a `sim` node
    """The simulator: its name and keys, as `sim` has them."""
    tasks: tuple[Text, ...] | None = None
    """Names of its tasks; null takes all of them."""
    initial_states: int | None = at_least(1, None)
    """The first so many numbered initial states of each task; null draws the scene from the seed."""
    seeds: int = at_least(1, 1)
    """The seeds 0, 1, … of each task and initial state, so many."""
    split: Text = "train"
    """Conditions of the simulator."""


@dataclass(frozen=True)
class BenchmarkNode:
    name: Text
    """Of the benchmark, for reports."""
    protocol: Text
    """Where its rules come from."""
    parts: tuple[BenchmarkPart, ...]
    """What it runs, one simulator after another."""
    seeding: Literal["shared", "per_state"] = "shared"
    """Seeds of numbered initial states. "shared": all have the same, so whatever a simulator draws beside them (LIBERO:
    where fixtures stand) is drawn alike. "per_state": each has its own, so it is drawn anew, as in a script that seeds
    once and draws at each reset."""
    open: tuple[Text, ...] = ()
    """Keys of `sim` that are the policy's own, such as how its actions move the robot: taken from the simulator that it
    was trained in, unless they are typed."""


@dataclass(frozen=True)
class LoraNode:
    rank: int = at_least(1, 32)
    """Rank of the low-rank adapters (arXiv:2106.09685)."""
    alpha: float | None = at_least(0.0, None)
    """Adapters are scaled by alpha / rank; null takes the rank."""


@dataclass(frozen=True)
class PolicyNode:
    kind: ClassVar[str] = "policies"
    name: Text
    """Policy; `embodied-rl list policies` shows them."""
    checkpoint: FilePath | None = None
    """Weights to start from: a run folder, a file, asset:<name>, a folder of lerobot's, openpi's or OpenVLA's, or
    hf:<owner>/<name>[@revision][:subfolder], which is downloaded from Hugging Face's Hub and pinned; null draws new
    ones."""
    cameras: dict[Text, Text | None] = field(default_factory=dict)
    """For a checkpoint of another project: its view → the simulator's camera, null for a view that stays empty; views
    and cameras of the same name need no entry."""
    statistics: FilePath | None = None
    """For a checkpoint of another project: whose statistics normalise, where it has none or those of several robots: a
    LeRobotDataset's folder, a norm_stats.json, the name of an openpi asset or of one of OpenVLA's datasets, or
    OpenVLA's dataset_statistics.json; null takes the checkpoint's."""
    tokenizer: FilePath | None = None
    """For a checkpoint of another project: a tokenizer.json, or its folder; null takes the checkpoint's own."""
    gripper: Literal["same", "inverted", "zero_one", "one_zero", "zero_one_binary", "one_zero_binary"] = "same"
    """For a checkpoint of another project: how its gripper actions relate to the simulator's -1 … 1; zero_one and
    one_zero are policies whose gripper runs from 0 to 1, and binary ones become fully -1 or 1, as for OpenVLA."""
    relative: tuple[Text, ...] | None = None
    """For a checkpoint of another project: actions, by the simulator's names, that it gives relative to the state entry
    of the same position; null takes what its files say, which is nothing in openpi's."""
    executed: int | None = at_least(1, None)
    """Actions of a chunk that are executed before the policy is asked again; null executes all."""
    delay: int = at_least(0, 0)
    """Training: control steps that an inference takes, in rollouts and evaluations, while the robot executes what was
    chosen before. The policy is told, and must be trained on prefixes so long (`sft algo.prefix`). A chunk needs
    executed + delay actions, and executed: null is the delay then."""
    blind: Literal["none", "image", "instruction"] | None = None
    """An input the policy never gets, for controls; null keeps the checkpoint's, or gives all."""
    freeze_perception: bool = False
    """Keep what sees fixed, and compute it once a decision."""
    train: Literal["full", "expert", "lora"] = "full"
    """What learns: everything; the action expert alone, on a frozen vision-language model; or low-rank adapters."""
    lora: LoraNode = field(default_factory=LoraNode)
    """Adapters, for train=lora."""
    device: Text = "auto"
    """Device of the network: cpu, cuda, cuda:<number>; auto takes a CUDA GPU if this machine has one that this build of
    torch can use, else the CPU. A run keeps what it started with."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Type of the vision-language model's weights where these are frozen; bfloat16 halves them, and rounds those of a
    checkpoint that stores more. null: bfloat16 where they are frozen on a GPU with autocast, else float32."""
    autocast: bool | None = None
    """Act and learn with matrix products in bfloat16, and what stays float32 in TF32 on a GPU; weights, their gradients
    and sums stay float32. false computes in float32 throughout; null: true on a GPU that has bfloat16, else false."""
    compile: bool = False
    """Compile the network for acting, with CUDA graphs on a GPU: minutes at the start, shorter decisions, and a rollout
    whose log-probabilities the update meets within rounding."""
    cache_gigabytes: float = at_least(0.0, 4.0)
    """Memory of each rank for what a frozen part of the network computed in a rollout, so that no epoch computes it
    again: keys and values of a frozen prefix, or else image features; 0 for none."""
    critic: Literal["privileged", "prefix", "expert"] = "privileged"
    """What the value is read from: simulator truth, the policy's prefix, or the action expert's features."""
    options: dict[str, Any] = take_other_keys()
    """The policy's own keys."""


@dataclass(frozen=True)
class SamplerNode:
    name: Literal["flow_sde", "flow_noise", "tokens", "gaussian"] = "flow_sde"
    """Where exploration comes from: a stochastic differential equation, or a learned noise head; tokens: the
    distribution over the bins of a policy that chooses action tokens; gaussian: a normal distribution around the
    actions of a policy that predicts them as numbers."""
    std: float = at_least(1e-4, 0.1)
    """Gaussian: its standard deviation, in the policy's units, in which most demonstrated actions lie within 1 of 0."""
    temperature: float = at_least(1e-3, 1.0)
    """Tokens: what logits are divided by before a bin is drawn and scored."""
    denoise_steps: int = at_least(1, 4, at_most=1000)
    """K, steps that integrate the flow."""
    noise_level: float = at_least(0.0, 0.8)
    """Flow-SDE: a, strength of the injected noise."""
    step_weights: tuple[float, ...] | None = None
    """Flow-SDE, hybrid: weight of each denoise step in the draw of the stochastic one; null draws evenly."""
    layers: Literal["hybrid", "full"] = "hybrid"
    """Flow-SDE: one stochastic denoise step per decision, or all of them."""
    std_min: float = at_least(0.0, 0.08)
    """Flow-Noise: lower bound of the noise head's standard deviation."""
    std_max: float = at_least(0.0, 0.3)
    """Flow-Noise: upper bound of the noise head's standard deviation."""


@dataclass(frozen=True)
class AlgoNode:
    kind: ClassVar[str] = "algorithms"
    name: Text
    """Algorithm; `embodied-rl list algos` shows them."""
    sampler: SamplerNode = field(default_factory=SamplerNode)
    """How actions are drawn from the flow while training."""
    options: dict[str, Any] = take_other_keys()
    """The algorithm's own keys."""


@dataclass(frozen=True)
class ReplayNode:
    root: FilePath | None = None
    """New folder for the experience of the run; null: the folder replay in the run folder."""
    preload: FilePath | None = None
    """Offline experience: the folder replay of an earlier run, one replay storage, or a LeRobotDataset with rewards and
    outcomes, also as hf:<owner>/<name>. It is only read."""
    capacity: int = at_least(1, 20_000)
    """Newest decisions that are kept, over all environments. Their space on the disk is reserved at the start."""
    collect: bool = True
    """Whether each iteration collects a rollout; false learns from replay.preload alone, without simulators."""
    offline_iterations: int = at_least(0, 0)
    """Iterations at the start that learn from replay.preload alone; later ones collect rollouts (offline to online)."""
    warmup_iterations: int = at_least(0, 0)
    """Iterations after those that only collect, with the policy as it is, before it learns from its own rollouts."""


@dataclass(frozen=True)
class CurriculumNode:
    kind: ClassVar[str] = "curricula"
    name: Text = "uniform"
    """How often each task is drawn while training; `embodied-rl list curricula` shows the ways."""
    options: dict[str, Any] = take_other_keys()
    """The way's own keys."""


@dataclass(frozen=True)
class ProbesNode:
    mismatch: float = at_least(0.0, 0.02, at_most=1.0)
    """Share of the requests that is asked once more under another task's words, when nothing else is to be asked."""


@dataclass(frozen=True)
class DistillNode:
    labels: int = at_least(1, 4096)
    """Newest labels that a head learns from; a checkpoint holds them."""
    steps: int = at_least(1, 32)
    """Gradient steps after each rollout that brought labels."""
    batch: int = at_least(1, 256)
    """Labels of a step; for a ranking, pairs."""
    rate: float = at_least(0.0, 1e-3)
    """Learning rate of Adam."""
    entries: int = at_least(1, 25_000)
    """Entries of the table (head=hash), at most."""
    pixels: int = at_least(1, 16)
    """Pixels of a side of the pictures that a head sees."""
    held_out: float = at_least(0.0, 0.1, at_most=0.9)
    """Share of the episodes that no head learns from, to compare it with the judge."""
    bonus: bool = False
    """The prediction itself is a reward, no potential: this changes which policy is optimal."""


@dataclass(frozen=True)
class RewardNode:
    kind: ClassVar[str] = "scorers"
    name: Text | None = None
    """Scorer that judges progress beside the simulator's reward; `embodied-rl list rewards` shows them. Null: none."""
    mode: Literal["audit", "late", "sync", "terminal", "distill", "rises"] = "late"
    """audit: scores are logged and change nothing. late: they are asked for while simulators run, and the newest one
    that has come before an action shapes the reward. sync: the same; each decision waits for its score. terminal: the
    scorer alone says when a task is done, its reward and its end; the simulator's reward counts for nothing. distill: a
    head learns from the scores, whenever they come, and its predictions shape the reward; nothing waits. rises: each
    rise of the score is a reward, which changes what is optimal; to compare."""
    head: Literal["hash", "classifier", "ranking"] = "classifier"
    """mode=distill: a table of coarse pictures; a network that predicts scores; one that learns which is higher."""
    distill: DistillNode = field(default_factory=DistillNode)
    """mode=distill: how the head learns."""
    done_threshold: float = at_least(0.0, 0.95, at_most=1.0)
    """mode=terminal: a task is done where the scorer gives that a higher probability."""
    done_in_a_row: int = at_least(1, 1)
    """mode=terminal: only after so many judgements in a row."""
    guard: bool = True
    """Fade the scorer out when its own opinion rises while true success falls; mode=terminal: warn."""
    probes: ProbesNode = field(default_factory=ProbesNode)
    """Questions that test the scorer."""
    weight: float = at_least(0.0, 0.5, at_most=1e6)
    """The potential is so many times the score; shaping by a potential does not change which policy is optimal. With
    mode=rises, what a rise by 1 pays."""
    every: int = at_least(1, 1)
    """Ask at each so many decisions of an episode; between them the last score is held."""
    confidence: float = at_least(0.0, 0.0, at_most=1.0)
    """Scores of less confidence count as missing."""
    deadline: float = at_least(0.0, 2.0)
    """Seconds that a decision waits for its own score, at most; with mode=terminal, the end of a rollout for all."""
    wait_share: float | None = at_least(0.0, 0.02)
    """This share of the time since a collector's last decision to wait for scores, at most. Null waits until the
    deadline, so that a run can be repeated bit by bit: for scorers that answer quickly. mode=terminal always does."""
    timeout: float = at_least(0.01, 10.0)
    """Seconds in which the scorer must answer a request."""
    in_flight: int = at_least(1, 32)
    """Requests at once, over all processes of the run."""
    budget: int | None = at_least(1, None)
    """Requests in the whole run, further attempts not counted; when they are spent, it goes on without the scorer."""
    price_per_1k_tokens: float | None = at_least(0.0, None)
    """Price of 1000 tokens of a server's model, in any currency: metrics and report tell the cost. Null: no prices."""
    price_per_1k_written: float | None = at_least(0.0, None)
    """Price of 1000 tokens that the model writes, where it is another one."""
    budget_money: float | None = at_least(0.0, None)
    """Money for the whole run, in the currency of the prices; when it is spent, the run goes on without the scorer."""
    examined: FilePath | None = None
    """Report critic.json of `embodied-rl critic eval` on this very scorer, which must have passed; a critic's own file
    tells how it did on the held-out episodes of its training."""
    calibration: FilePath | None = None
    """File calibration.json of `embodied-rl critic eval calibrate=true` on this very scorer: its scores become
    probabilities of outcomes."""
    on_down: Literal["continue", "abort"] = "continue"
    """When the scorer cannot be reached: continue without it, and say so; or end the run."""
    options: dict[str, Any] = take_other_keys()
    """The scorer's own keys."""


@dataclass(frozen=True)
class TrainLoop:
    iterations: int = at_least(1, 100)
    """Rollouts, each followed by one update."""
    decisions: int = at_least(1, 24)
    """T, policy calls per environment in a rollout; without effect for algorithms that collect whole episodes."""
    task: Text | None = None
    """Only this task, or this family, is trained and evaluated, and learned from in `replay.preload`; null for all."""
    late_starts: float = at_least(0.0, 0.0, at_most=1.0)
    """Share of training episodes, or groups, that begin shortly before the end of an earlier failure, as soon as one is
    known; evaluations never do."""
    late_decisions: int = at_least(1, 8)
    """How many policy calls before that end."""
    time_limit: Literal["bootstrap", "terminal"] = "bootstrap"
    """What the end of a truncated episode is worth: its final observation's value; or nothing, where to be in time is
    part of the task and the critic sees a clock."""
    eval_every: int = at_least(0, 25)
    """Iterations between evaluations while training; 0 evaluates only at the end."""
    eval_episodes: int = at_least(1, 256, at_most=MOST_EPISODES)
    """Episodes of an evaluation while training."""
    final_episodes: int = at_least(1, 512, at_most=MOST_EPISODES)
    """Episodes of the evaluation before and after training, on seeds of their own."""
    film: bool = True
    """Film some of those episodes, which takes ffmpeg and a simulator that shows something."""


@dataclass(frozen=True)
class CheckpointConfig:
    every: int = at_least(1, 10)
    """Iterations between checkpoints."""
    keep: int = at_least(1, 3)
    """Checkpoints kept besides the best one."""


@dataclass(frozen=True)
class Plan:
    allocation: Literal["auto", "colocated", "split"] = "colocated"
    """colocated: ranks simulate, infer and learn; split: simulators have worker processes of their own; auto, which
    `train` starts from and only `train` knows: what promises most on this machine."""
    ranks: int = at_least(1, 2)
    """Symmetric processes that infer and learn, gradients averaged."""
    slices: int = at_least(1, 1)
    """Sets of environments of a rank; while one is inferred the others simulate."""
    workers: int = at_least(1, 2)
    """Split: simulator processes of each slice."""
    order: Literal["exact", "ready"] = "exact"
    """Split: infer slices in turn, or whichever simulators are done; "ready" gives up reproducible bits."""
    rollout_workers: int | None = at_least(0, None)
    """Processes that collect beside the ranks, each with a policy and simulators of its own; 0: ranks collect. Null
    takes 0, or with mode=stream and mode=async as many as there are ranks."""
    learner: Literal["replicated", "sharded"] = "replicated"
    """replicated: each rank has the whole optimiser; sharded: a share of weights, gradients and moments (FSDP2)."""
    policy: Literal["shared", "process"] = "shared"
    """shared: a rank infers with the module that learns; process: a process beside it does, and is sent the weights."""
    start_timeout: float = at_least(1.0, 300.0)
    """Seconds in which a simulator process must have started; then it counts as hung."""
    call_timeout: float = at_least(1.0, 120.0)
    """Seconds in which a simulator process must have executed a chunk; then it counts as hung and is replaced. A
    rollout worker counts as hung once it is silent for start_timeout, twice call_timeout, and ten seconds."""

    @property
    def collectors(self) -> int:
        """Return the number of processes that collect: rollout workers, or else the ranks."""
        return self.rollout_workers or self.ranks

    @property
    def parts(self) -> int:
        """Return the number of simulators that the environments are divided over."""
        return self.collectors * self.simulators

    @property
    def simulators(self) -> int:
        """Return the number of simulators of each process that collects."""
        return self.slices * (1 if self.allocation == "colocated" else self.workers)


@dataclass(frozen=True)
class LoggerNode:
    kind: ClassVar[str] = "loggers"
    name: Annotated[Code, frozenset({"json", "tensorboard"})] = "tensorboard"
    """Where metrics go beside metrics.jsonl; `embodied-rl list loggers` shows the choices."""
    live: bool = True
    """Show a live table on a terminal; otherwise plain lines."""
    options: dict[str, Any] = take_other_keys()
    """The logger's own keys."""


@dataclass(frozen=True)
class FilterNode:
    """Thresholds by which `collect` and `sft` leave out demonstrations that a scorer rates as bad."""

    voc: float | None = at_least(-1.0, None, at_most=1.0)
    """Leave out episodes whose progress is less in order: the rank correlation of progress with time (VLAC). Null
    leaves out none."""
    losses: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out episodes in which a larger share of the steps between judged frames are losses of a hundredth or more
    (VLAC's negative deltas)."""
    end: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out episodes that end with less progress."""
    drop: float | None = at_least(0.0, None, at_most=1.0)
    """Leave out what lets progress fall by more than this within a chunk (GR-RL): sft leaves out the rows that such a
    chunk begins with, collect whole episodes."""
    every: int = at_least(1, 2)
    """Control steps between judged frames; the first and the last are always judged."""

    @property
    def rules(self) -> dict[str, float]:
        """Return the thresholds that are set."""
        named = {"voc": self.voc, "losses": self.losses, "end": self.end, "drop": self.drop}
        return {name: value for name, value in named.items() if value is not None}
