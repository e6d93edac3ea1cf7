"""The commands of the training platform."""

from dataclasses import replace

from embodied_rl.cli.command import Command, Words

_TRAINING = (
    "sim.num_envs", "policy.checkpoint", "policy.train", "policy.device", "policy.critic", "train.iterations",
    "train.decisions", "train.eval_every", "train.eval_episodes", "train.final_episodes", "checkpoint.every",
)  # fmt: skip
_RUN = ("seed", "run.root", "run.experiment")
_FILTER = ("filter.voc", "filter.losses", "filter.end", "filter.drop")
_PLACE = ("plan.allocation", "plan.ranks")

_COMPARE_SWEEP = "embodied_rl.commands.compare:compare_sweep"

# fmt: off
_BRIEF = (
    Command(
        "train",
        "Fine-tune a policy by reinforcement learning in simulation.",
        "TrainConfig", "run",
        (
            "experiment=demo",
            "experiment=tabletop algo=flow_noise seed=3",
            "resume=last",
            "experiment=demo seed=0,1,2 -m",
        ),
        config="train",
        check="check_start",
        common=("resume", *_TRAINING, *_RUN, *_PLACE),
        compare=_COMPARE_SWEEP,
    ),
    Command(
        "plan",
        "Measure the stages of a training run, predict every allocation, and choose one.",
        "PlanConfig", "run",
        ("experiment=tabletop", "experiment=tabletop costs=plan/costs.json resources=8xcore"),
        config="train",
        common=("costs", "resources", "out", "sim.num_envs", "policy.checkpoint", "policy.train", "train.decisions"),
    ),
    Command(
        "trace",
        "Write one iteration of a run as a trace for Perfetto or Chrome: who did what, when.",
        "TraceConfig", "run",
        ("runs/demo/<time>_s0", "last iteration=20"),
        words=Words("folder", "run"),
    ),
    Command(
        "eval",
        "Measure a checkpoint's success: exact episodes, intervals, a report with videos.",
        "EvalConfig", "run",
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
        check="check_evaluation",
        common=(
            "policy", "benchmark", "sim.name", "episodes", "split", "task", "seed", "ablate", "delay", "strategy",
            "out", "video.episodes", "video.best", "video.worst",
        ),
        compare=_COMPARE_SWEEP,
        json=True,
    ),
    Command(
        "compare",
        "Compare runs: paired test, table, curves with intervals over seeds.",
        "CompareConfig", "run",
        ("runs/demo/<time>_s0 runs/demo/<time>_s1 out=comparison",),
        words=Words("runs", "run", many=True),
        check="check_reports",
        json=True,
    ),
    Command(
        "watch",
        "Show the curves and newest films of runs while they train, on a page of this machine.",
        "WatchConfig", "run",
        ("", "runs/demo/<time>_s0 runs/demo/<time>_s1"),
        words=Words("runs", "run", many=True),
        check="check_start",
    ),
    Command(
        "figures",
        "Redraw the documentation's plots and tables from tracked runs; track further runs.",
        "FiguresConfig", "run",
        ("", "runs/demo/<time>_s0 runs/demo/<time>_s1 group=demo"),
        words=Words("runs", "run", many=True),
        check="check_figures",
    ),
    Command(
        "sft",
        "Clone scripted demonstrations: what made the base checkpoint.",
        "SftConfig", "run",
        ("experiment=tabletop_sft", "experiment=tabletop_sft algo.steps=500 seed=1"),
        config="sft",
        common=(
            "dataset", "sources", "task", "eval_episodes", "export", "sim.num_envs", "policy.checkpoint",
            "policy.train", "policy.device", *_FILTER, *_RUN,
        ),
        check="check_start",
        compare=_COMPARE_SWEEP,
    ),
    Command(
        "import",
        "Attach a checkpoint of lerobot, openpi or OpenVLA to a simulator: a policy file for eval, play and collect.",
        "ImportConfig", "embodied_rl.commands.import_checkpoint:run",
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
        "Write a policy as a checkpoint of lerobot, openpi or OpenVLA.",
        "ExportConfig", "run",
        ("runs/train/<time>_s0 format=lerobot out=my_policy",),
        words=Words("checkpoint", "policy"),
        check="check_start",
    ),
    Command(
        "inspect",
        "Say what a checkpoint holds: network, sizes, statistics, cameras, and what would be missing.",
        "InspectConfig", "run",
        ("runs/train/<time>_s0", "<folder of lerobot's or openpi's>"),
        words=Words("checkpoint", "checkpoint"),
        check="check_start",
    ),
    Command(
        "collect",
        "Write demonstrations or rollouts to disk; from=<recording> converts what a robot did, see `convert`.",
        "CollectConfig", "run",
        ("expert episodes=100", "runs/demo/<time>_s0 episodes=500 out=rollouts", "from=recordings/monday out=dataset"),
        config="collect",
        common=("policy", "episodes", "split", "task", "seed", "out", "format", *_FILTER),
        values=("policy",),
        words=Words("policy", "policy"),
        check="check_collection",
        elsewhere={"from": ("convert", "recording")},  # `from` cannot be the name of a Python field
    ),
    Command(
        "convert",
        "Make a recording into episodes to learn from; also typed `collect from=<recording>`.",
        "ConvertConfig", "run",
        ("recordings/monday out=dataset", "recordings/monday format=replay out=replay"),
        values=("robot",),
        words=Words("recording", "recording"),
        check="check_conversion",
    ),
    Command(
        "view",
        "Write episodes of a dataset, a replay storage or a run as a recording for Rerun's viewer.",
        "ViewConfig", "run",
        ("demonstrations out=demonstrations.rrd", "runs/tabletop/<time>_s0 episodes=[0,-1] out=run.rrd"),
        words=Words("source", "source"),
        check="check_start",
    ),
    Command(
        "play",
        "Film one episode of each task.",
        "PlayConfig", "run",
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
        "ServeConfig", "run",
        ("asset:tabletop_base.safetensors", "runs/demo/<time>_s0 follow=true port=8000"),
        values=("policy",),
        words=Words("policy", "policy"),
        check="check_serving",
        common=("policy", "follow", "host", "port", "token_variable", "keys", "device", "batch"),
    ),
    Command(
        "deploy",
        "Drive a simulated robot over ROS 2 with a policy: server, bridge and robot on this machine, a report, a film.",
        "DeployConfig", "embodied_rl.benchmarks.robot_runs.deployment:deploy_policy",
        ("asset:tabletop_careful.safetensors robot=tabletop", "runs/demo/<time>_s0 lockstep=true episodes=64"),
        values=("policy", "robot"),
        words=Words("policy", "policy"),
        check="embodied_rl.benchmarks.robot_runs.deployment:check_deployment",
        common=("policy", "robot", "episodes", "lockstep", "seed", "split", "task", "transport", "out"),
    ),
    Command(
        "robot",
        "Simulate a robot as a node of ROS 2: joint states, cameras, commands, emergency stop, faults.",
        "RobotConfig", "run",
        ("robot=tabletop", "robot=tabletop lockstep=true", "robot=tabletop faults.cameras=frozen"),
        config="robot",
        values=("robot",),
        words=Words("robot", "robot"),
        check="check_start",
        common=(
            "robot", "lockstep", "transport", "task", "seed", "episodes", "faults.states", "faults.cameras", "film",
        ),
    ),
    Command(
        "critic train",
        "Train an embedded critic: a small network that judges progress from pictures, without a server.",
        "CriticTrainConfig", "run",
        ("sim=tabletop out=critic.safetensors", "dataset=recorded policy=asset:tabletop_base.safetensors"),
        config="critic_train",
        values=("policy",),
        check="check_training",
        common=("sim.name", "dataset", "policy", "episodes", "held_out", "steps", "seed", "out"),
    ),
    Command(
        "critic eval",
        "Measure what a scorer is worth, on episodes whose truth is known, and whether its scores may be a reward.",
        "CriticEvalConfig", "run",
        (
            "reward=embedded runs/demo/<time>_s0",
            "reward=vlm reward.url=http://127.0.0.1:8000/v1 sim=tabletop episodes=60",
            "reward=vlm reward.url=http://127.0.0.1:8000/v1 dataset=demonstrations",
        ),
        config="critic_eval",
        words=Words("runs", "run", many=True),
        check="check_evaluation",
        common=(
            "runs", "dataset", "sim.name", "reward.name", "reward.in_flight", "reward.timeout", "episodes", "others",
            "threshold", "split", "seed", "out",
        ),
    ),
    Command(
        "critic probe",
        "Find out what a vision-language model's server can do, and with which settings to ask it.",
        "CriticProbeConfig", "run",
        ("reward.url=http://127.0.0.1:8000/v1", "reward.url=http://127.0.0.1:8000/v1 reward.model=<name> most=16"),
        config="critic_probe",
        common=("reward.timeout", "seconds", "most", "cameras"),
    ),
    Command(
        "critic serve",
        "Serve a critic, or a vision-language model, by the protocol of OpenAI's chat completions.",
        "CriticServeConfig", "run",
        ("asset:tabletop_critic.safetensors", "<folder of transformers'> port=8000 batch=8"),
        words=Words("model", "critic"),
        check="check_start",
        common=("model", "name", "host", "port", "token_variable", "device", "batch", "wait_ms"),
    ),
    Command(
        "doctor",
        "Say what is wrong with this machine, and the remedy.",
        "DoctorConfig", "run",
        ("", "sim=libero", "run.root=/data/runs", "robot=my_arm.yaml policy=ws://192.168.1.5:8000"),
        config="doctor",
        values=("robot", "policy"),
        common=("sim.name", "robot", "policy", "transport", "seconds", "questions", "run.root"),
        replaces=True,
        json=True,
    ),
    Command(
        "sim",
        "Make a Python environment for a simulator that cannot share this one.",
        "EnvironmentConfig", "run",
        ("install maniskill", "install libero replace=true"),
        words=Words("words", "word", many=True),
        check="plan_installation",
    ),
    Command(
        "bench",
        "Measure a simulator, compare algorithms or rewards, or measure a policy under delay or on a simulated robot.",
        "BenchConfig", "run",
        (
            "tabletop",
            "algorithms experiment=demo plan=colocated 'algorithms=[flow_sde,filtered]'",
            "potentials experiment=demo decisions=50000",
            "delay policy_file=<run> delays=[0,1,2]",
            "deploy policy_file=<run> episodes=16",
        ),
        config="train",
        words=Words("what", "measurement"),
        check="check_bench",
        common=(
            "what", "seconds", "policy_file", "episodes", "algorithms", "arms", "seeds", "decisions", "target", "out",
            "sim.num_envs", "seed",
        ),
    ),
)
# fmt: on


def _complete(brief: Command) -> Command:
    """Return a command of `_BRIEF` with full paths: where no module is named, that of the command itself."""
    own = f"embodied_rl.commands.{brief.name.replace(' ', '_')}:"
    body, check = (path if path is None or ":" in path else own + path for path in (brief.body, brief.check))
    schema, preparation = f"embodied_rl.schema:{brief.schema}", "embodied_rl.commands.preparation:TrainingPreparation"
    return replace(brief, schema=schema, body=str(body), check=check, preparation=preparation)


_LIST = Command(
    "list",
    "Show the choices: sims, policies, algos, curricula, rewards, loggers, prompts, plans, benchmarks, recipes, "
    "robots, experiments, tasks.",
    None,
    "embodied_rl.commands.list:list_choices",
    replaces=True,
)
_COMPLETION = Command(
    "completion",
    "Print a script that completes commands, keys and choices: for bash or zsh.",
    None,
    "embodied_rl.cli.completion:run",
    ("bash", "zsh"),
)
COMMANDS = (*map(_complete, _BRIEF), _LIST, _COMPLETION)
