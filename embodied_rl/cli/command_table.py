"""The table of commands. `list`, the only one without a configuration, is in `listing.py`."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """The plain words after a command: the key that takes them, the noun for one word, and whether many are allowed."""

    key: str
    called: str
    many: bool = False


@dataclass(frozen=True)
class Command:
    """A command: the first word after `embodied-rl`.

    Attributes:
        name: one word, or two, of which the first names a group of commands.
        summary: one line for the overview.
        schema: name of its configuration class in `embodied_rl.config.schema`.
        body: "module:function", imported when called, with the frozen configuration as the only argument.
        examples: typical arguments after the name.
        check: "module:function" that `--dry-run` calls to find what would make the command fail. It returns rows of
            text to print, or None.
        config: the YAML to start from; None if the dataclass alone defines everything.
        values: keys that hold a plain value although a folder of YAML has the same name.
        words: the meaning of plain words; None if the command takes none.
        common: the keys that `--help` shows; empty for all.
        compare: "module:function" that compares the runs of a sweep, called with their folders and the sweep's folder;
            None if they write no reports.
    """

    name: str
    summary: str
    schema: str
    body: str
    examples: tuple[str, ...]
    check: str | None = None
    config: str | None = None
    values: tuple[str, ...] = ()
    words: Words | None = None
    common: tuple[str, ...] = ()
    compare: str | None = None


_TRAINING = (
    "sim.num_envs", "policy.checkpoint", "policy.train", "policy.device", "policy.critic", "train.iterations",
    "train.decisions", "train.eval_every", "train.eval_episodes", "train.final_episodes", "checkpoint.every",
)  # fmt: skip
_RUN = ("seed", "run.root", "run.experiment")
_FILTER = ("filter.voc", "filter.losses", "filter.end", "filter.drop")
_PLACE = ("plan.allocation", "plan.ranks")

_COMPARE_SWEEP = "embodied_rl.commands.compare:compare_sweep"

# fmt: off
_ALL = (
    Command(
        "train",
        "Fine-tune a policy by reinforcement learning in simulation.",
        "TrainConfig",
        "embodied_rl.commands.train:run",
        (
            "experiment=demo",
            "experiment=tabletop algo=flow_noise seed=3",
            "resume=last",
            "experiment=demo seed=0,1,2 -m",
        ),
        config="train",
        check="embodied_rl.commands.train:check_start",
        common=("resume", *_TRAINING, *_RUN, *_PLACE),
        compare=_COMPARE_SWEEP,
    ),
    Command(
        "plan",
        "Measure the stages of a training run, predict every allocation, and choose one.",
        "PlanConfig",
        "embodied_rl.commands.plan:run",
        ("experiment=tabletop", "experiment=tabletop costs=plan/costs.json resources=8xcore"),
        config="train",
        common=("costs", "resources", "out", "sim.num_envs", "policy.checkpoint", "policy.train", "train.decisions"),
    ),
    Command(
        "trace",
        "Write one iteration of a run as a trace for Perfetto or Chrome: who did what, when.",
        "TraceConfig",
        "embodied_rl.commands.trace:run",
        ("runs/demo/<time>_s0", "last iteration=20"),
        words=Words("folder", "run"),
    ),
    Command(
        "eval",
        "Measure a checkpoint's success: exact episodes, intervals, a report with videos.",
        "EvalConfig",
        "embodied_rl.commands.eval:run",
        (
            "runs/demo/<time>_s0",
            "asset:tabletop_base.safetensors split=vision episodes=256",
            "expert benchmark=tabletop",
            "asset:tabletop_careful.safetensors delay=2 strategy=naive",
            "resume=eval/eval_<time>",
        ),
        config="eval",
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.commands.eval:check_evaluation",
        common=(
            "policy", "benchmark", "sim.name", "episodes", "split", "task", "seed", "ablate", "delay", "strategy",
            "out", "video.episodes", "video.best", "video.worst",
        ),
        compare=_COMPARE_SWEEP,
    ),
    Command(
        "compare",
        "Compare runs: paired test, table, curves with intervals over seeds.",
        "CompareConfig",
        "embodied_rl.commands.compare:run",
        ("runs/demo/<time>_s0 runs/demo/<time>_s1 out=comparison",),
        words=Words("runs", "run", many=True),
        check="embodied_rl.commands.compare:check_reports",
    ),
    Command(
        "sft",
        "Clone scripted demonstrations: what made the base checkpoint.",
        "SftConfig",
        "embodied_rl.commands.sft:run",
        ("experiment=tabletop_sft", "experiment=tabletop_sft algo.steps=500 seed=1"),
        config="sft",
        common=(
            "dataset", "sources", "task", "eval_episodes", "export", "sim.num_envs", "policy.checkpoint",
            "policy.train", "policy.device", *_FILTER, *_RUN,
        ),
        check="embodied_rl.commands.sft:check_start",
        compare=_COMPARE_SWEEP,
    ),
    Command(
        "import",
        "Attach a checkpoint of lerobot or openpi to a simulator: a policy file for eval, play and collect.",
        "ImportConfig",
        "embodied_rl.commands.import_checkpoint:run",
        ("policy=pi05 policy.checkpoint=<folder> sim=libero out=pi05_libero.safetensors",),
        config="import",
        common=(
            "policy.checkpoint", "policy.cameras", "policy.statistics", "policy.tokenizer", "policy.gripper",
            "policy.relative", "policy.executed", "out",
        ),
        check="embodied_rl.commands.import_checkpoint:check_start",
    ),
    Command(
        "export",
        "Write a policy as a checkpoint of lerobot or openpi.",
        "ExportConfig",
        "embodied_rl.commands.export:run",
        ("runs/train/<time>_s0 format=lerobot out=my_policy",),
        words=Words("checkpoint", "policy"),
        check="embodied_rl.commands.export:check_start",
    ),
    Command(
        "inspect",
        "Say what a checkpoint holds: network, sizes, statistics, cameras, and what would be missing.",
        "InspectConfig",
        "embodied_rl.commands.inspect:run",
        ("runs/train/<time>_s0", "<folder of lerobot's or openpi's>"),
        words=Words("checkpoint", "checkpoint"),
    ),
    Command(
        "collect",
        "Write demonstrations or rollouts to disk; from=<recording> converts what a robot did, see `convert`.",
        "CollectConfig",
        "embodied_rl.commands.collect:run",
        ("expert episodes=100", "runs/demo/<time>_s0 episodes=500 out=rollouts", "from=recordings/monday out=dataset"),
        config="collect",
        common=("policy", "episodes", "split", "task", "seed", "out", "format", *_FILTER),
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.commands.collect:check_collection",
    ),
    Command(
        "record",
        "Record what a robot, its operator and the bridge say over ROS 2, as MCAP.",
        "RecordConfig",
        "embodied_rl.commands.record:run",
        ("robot=tabletop out=recordings/monday", "recover=recordings/monday out=recordings/recovered"),
        values=("robot",),
        check="embodied_rl.commands.record:check_start",
        common=("robot", "out", "seconds", "transport", "compression", "recover"),
    ),
    Command(
        "convert",
        "Make a recording into episodes to learn from; also typed `collect from=<recording>`.",
        "ConvertConfig",
        "embodied_rl.commands.convert:run",
        ("recordings/monday out=dataset", "recordings/monday format=replay out=replay"),
        values=("robot",),
        words=Words("recording", "recording"),
        check="embodied_rl.commands.convert:check_conversion",
    ),
    Command(
        "play",
        "Film one episode of each task.",
        "PlayConfig",
        "embodied_rl.commands.play:run",
        ("expert", "asset:tabletop_base.safetensors"),
        config="play",
        common=("policy", "split", "task", "seed", "out"),
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.assembly.policy_factory:check_acting",
    ),
    Command(
        "serve",
        "Serve a policy by openpi's protocol: websocket and msgpack, for robots and others' harnesses.",
        "ServeConfig",
        "embodied_rl.commands.serve:run",
        ("asset:tabletop_base.safetensors", "runs/demo/<time>_s0 follow=true port=8000"),
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.commands.serve:check_serving",
        common=("policy", "follow", "host", "port", "token_variable", "keys", "device", "batch"),
    ),
    Command(
        "deploy",
        "Drive a simulated robot over ROS 2 with a policy: server, bridge and robot on this machine, a report, a film.",
        "DeployConfig",
        "embodied_rl.benchmarks.trials.deployment:deploy_policy",
        ("asset:tabletop_careful.safetensors robot=tabletop", "runs/demo/<time>_s0 lockstep=true episodes=64"),
        values=("policy", "robot"),
        words=Words("policy", "policy"),
        check="embodied_rl.benchmarks.trials.deployment:check_deployment",
        common=("policy", "robot", "episodes", "lockstep", "seed", "split", "task", "transport", "out"),
    ),
    Command(
        "bridge",
        "Drive a robot over ROS 2 with a policy behind a server, with or without an installation of ROS 2.",
        "BridgeConfig",
        "embodied_rl.deployment.bridge.running:run_bridge",
        ("robot=<yaml> policy=ws://127.0.0.1:8000", "robot=<yaml> policy=ws://127.0.0.1:8000 dry_run=true"),
        values=("policy", "robot"),
        check="embodied_rl.deployment.bridge.running:check_bridge",
        common=(
            "robot", "policy", "dry_run", "transport", "strategy", "replan", "instruction", "return_points", "replay",
            "server.deadline",
        ),
    ),
    Command(
        "robot",
        "Simulate a robot as a node of ROS 2: joint states, cameras, commands, emergency stop, faults.",
        "RobotConfig",
        "embodied_rl.commands.robot:run",
        ("robot=tabletop", "robot=tabletop lockstep=true", "robot=tabletop faults.cameras=frozen"),
        config="robot",
        values=("robot",),
        words=Words("robot", "robot"),
        check="embodied_rl.commands.robot:check_start",
        common=(
            "robot", "lockstep", "transport", "task", "seed", "episodes", "faults.states", "faults.cameras", "film",
        ),
    ),
    Command(
        "critic train",
        "Train an embedded critic: a small network that judges progress from pictures, without a server.",
        "CriticTrainConfig",
        "embodied_rl.commands.critic_train:run",
        ("sim=tabletop out=critic.safetensors", "dataset=recorded policy=asset:tabletop_base.safetensors"),
        config="critic_train",
        values=("policy",),
        check="embodied_rl.commands.critic_train:check_training",
        common=("sim.name", "dataset", "policy", "episodes", "held_out", "steps", "seed", "out"),
    ),
    Command(
        "critic eval",
        "Measure what a scorer is worth, on episodes whose truth is known, and whether its scores may be a reward.",
        "CriticEvalConfig",
        "embodied_rl.commands.critic_eval:run",
        (
            "reward=embedded runs/demo/<time>_s0",
            "reward=vlm reward.url=http://127.0.0.1:8000/v1 sim=tabletop episodes=60",
            "reward=vlm reward.url=http://127.0.0.1:8000/v1 dataset=demonstrations",
        ),
        config="critic_eval",
        words=Words("runs", "run", many=True),
        check="embodied_rl.commands.critic_eval:check_evaluation",
        common=(
            "runs", "dataset", "sim.name", "reward.name", "reward.in_flight", "reward.timeout", "episodes", "others",
            "threshold", "split", "seed", "out",
        ),
    ),
    Command(
        "critic probe",
        "Find out what a vision-language model's server can do, and with which settings to ask it.",
        "CriticProbeConfig",
        "embodied_rl.commands.critic_probe:run",
        ("reward.url=http://127.0.0.1:8000/v1", "reward.url=http://127.0.0.1:8000/v1 reward.model=<name> most=16"),
        config="critic_probe",
        common=("reward.timeout", "seconds", "most", "cameras"),
    ),
    Command(
        "critic serve",
        "Serve a critic, or a vision-language model, by the protocol of OpenAI's chat completions.",
        "CriticServeConfig",
        "embodied_rl.commands.critic_serve:run",
        ("asset:tabletop_critic.safetensors", "<folder of transformers'> port=8000 batch=8"),
        words=Words("model", "critic"),
        check="embodied_rl.commands.critic_serve:check_start",
        common=("model", "name", "host", "port", "token_variable", "device", "batch", "wait_ms"),
    ),
    Command(
        "doctor",
        "Say what is wrong with this machine, and the remedy.",
        "DoctorConfig",
        "embodied_rl.commands.doctor:run",
        ("", "sim=libero", "run.root=/data/runs", "robot=my_arm.yaml policy=ws://192.168.1.5:8000"),
        config="doctor",
        values=("robot", "policy"),
        common=("sim.name", "robot", "policy", "transport", "seconds", "questions", "run.root"),
    ),
    Command(
        "contract",
        "Convert a robot's file to a contract of rosetta (ROS 2 and lerobot), or a contract to a robot's file.",
        "ContractConfig",
        "embodied_rl.commands.contract:run",
        ("robot=my_arm.yaml out=contract.yaml", "contract=contract.yaml out=my_arm.yaml"),
        values=("robot",),
        check="embodied_rl.commands.contract:check_start",
    ),
    Command(
        "sim",
        "Make a Python environment for a simulator that cannot share this one.",
        "EnvironmentConfig",
        "embodied_rl.commands.sim:run",
        ("install maniskill", "install libero replace=true"),
        words=Words("words", "word", many=True),
        check="embodied_rl.commands.sim:plan_installation",
    ),
    Command(
        "bench",
        "Measure a simulator, its overlap with inference, the planner's predictions, policies, or ablations.",
        "BenchConfig",
        "embodied_rl.commands.bench:run",
        (
            "tabletop",
            "overlap experiment=tabletop",
            "pipeline experiment=tabletop",
            "policy",
            "memory",
            "potentials experiment=demo decisions=50000",
            "ablations",
            "delay policy_file=<run> delays=[0,1,2]",
            "deploy policy_file=<run> episodes=16",
        ),
        config="train",
        words=Words("what", "measurement"),
        common=(
            "what", "seconds", "device", "compiled", "arms", "seeds", "decisions", "target", "out", "sim.num_envs",
            "seed",
        ),
    ),
)
# fmt: on

_ALIASES = {("collect", "from"): ("convert", "recording")}
"""(command, key) → (command, key) that is meant: `from` cannot be the name of a Python field."""
COMMANDS = {command.name: command for command in _ALL}
LIST_SUMMARY = (
    "Show the choices: sims, policies, algos, curricula, rewards, loggers, prompts, plans, benchmarks, robots, "
    "experiments, tasks."
)


def list_groups() -> list[str]:
    """Return the first words of commands of two words."""
    return sorted({name.split()[0] for name in COMMANDS if " " in name})


def find_command_name(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command's name at the start of the arguments, one word or two, and the other arguments."""
    if " ".join(arguments[:2]) in COMMANDS:
        return " ".join(arguments[:2]), list(arguments[2:])
    name, rest = arguments[0], list(arguments[1:])
    for position, word in enumerate(rest):
        key, equals, value = word.partition("=")
        if equals and (name, key) in _ALIASES:
            name, new = _ALIASES[name, key]
            return name, [*rest[:position], f"{new}={value}", *rest[position + 1 :]]
    return name, rest
