"""The table of commands that compose a configuration. Only `list` composes none; see `listing.py`."""

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
        name: the word.
        summary: one line for the overview.
        schema: name of its configuration class in `embodied_rl.config.schema`.
        body: "module:function", imported when called, with the frozen configuration as the only argument.
        examples: typical arguments after the name.
        check: "module:function" that finds what would make the command fail, for `--dry-run`; the body checks itself.
        config: the YAML to start from; None if the dataclass alone defines everything.
        values: keys that hold a plain value although a folder of YAML has the same name.
        words: the meaning of plain words; None if the command takes none.
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
    ),
    Command(
        "plan",
        "Measure the stages of a training run, predict every allocation, and choose one.",
        "PlanConfig",
        "embodied_rl.commands.plan:run",
        ("experiment=tabletop", "experiment=tabletop costs=plan/costs.json resources=8xcore"),
        config="train",
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
            "resume=eval/eval_<time>",
        ),
        config="eval",
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.commands.eval:check_evaluation",
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
        check="embodied_rl.commands.sft:check_cloning",
    ),
    Command(
        "import",
        "Attach a checkpoint of lerobot or openpi to a simulator: a policy file for eval, play and collect.",
        "ImportConfig",
        "embodied_rl.commands.import_checkpoint:run",
        ("policy=pi05 policy.checkpoint=<folder> sim=libero out=pi05_libero.safetensors",),
        config="import",
        check="embodied_rl.commands.import_checkpoint:check_import",
    ),
    Command(
        "export",
        "Write a policy as a checkpoint of lerobot or openpi.",
        "ExportConfig",
        "embodied_rl.commands.export:run",
        ("runs/train/<time>_s0 format=lerobot out=my_policy",),
        words=Words("checkpoint", "policy"),
        check="embodied_rl.commands.export:check_export",
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
        "Write demonstrations or rollouts to disk.",
        "CollectConfig",
        "embodied_rl.commands.collect:run",
        ("expert episodes=100", "runs/demo/<time>_s0 episodes=500 out=rollouts"),
        config="collect",
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.assembly.acting:check_acting",
    ),
    Command(
        "play",
        "Film one episode of each task.",
        "PlayConfig",
        "embodied_rl.commands.play:run",
        ("expert", "asset:tabletop_base.safetensors"),
        config="play",
        values=("policy",),
        words=Words("policy", "policy"),
        check="embodied_rl.assembly.acting:check_acting",
    ),
    Command(
        "doctor",
        "Say what is wrong with this machine, and the remedy.",
        "DoctorConfig",
        "embodied_rl.commands.doctor:run",
        ("", "sim=libero", "run.root=/data/runs"),
        config="doctor",
    ),
    Command(
        "sim",
        "Make a Python environment for a simulator that cannot share this one.",
        "EnvironmentConfig",
        "embodied_rl.commands.sim:run",
        ("install maniskill", "install libero replace=true"),
        words=Words("words", "word", many=True),
        check="embodied_rl.commands.sim:check_recipe",
    ),
    Command(
        "bench",
        "Measure a simulator, its overlap with inference, the planner's predictions, policies, or ablations.",
        "BenchConfig",
        "embodied_rl.commands.bench:run",
        ("tabletop", "overlap experiment=tabletop", "pipeline experiment=tabletop", "policy", "memory", "ablations"),
        config="train",
        words=Words("what", "measurement"),
    ),
)

COMMANDS = {command.name: command for command in _ALL}
LIST_SUMMARY = "Show what can be chosen: sims, policies, algos, curricula, plans, benchmarks, experiments, tasks."
