"""The commands of a robot's computer; they need no training platform."""

from embodied_rl.cli.command import Command

# fmt: off
COMMANDS = (
    Command(
        "bridge",
        "Drive a robot over ROS 2 with a policy behind a server, with or without an installation of ROS 2.",
        "embodied_rl.deployment.configuration:BridgeConfig",
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
        "record",
        "Record what a robot, its operator and the bridge say over ROS 2, as MCAP.",
        "embodied_rl.deployment.configuration:RecordConfig",
        "embodied_rl.deployment.commands.record:run",
        ("robot=tabletop out=recordings/monday", "recover=recordings/monday out=recordings/recovered"),
        values=("robot",),
        check="embodied_rl.deployment.commands.record:check_start",
        common=("robot", "out", "seconds", "transport", "compression", "recover"),
    ),
    Command(
        "contract",
        "Convert a robot's file to a contract of rosetta (ROS 2 and lerobot), or a contract to a robot's file.",
        "embodied_rl.deployment.configuration:ContractConfig",
        "embodied_rl.deployment.commands.contract:run",
        ("robot=my_arm.yaml out=contract.yaml", "contract=contract.yaml out=my_arm.yaml"),
        values=("robot",),
        check="embodied_rl.deployment.commands.contract:check_start",
    ),
    Command(
        "doctor",
        "Examine a robot's topics, and the policy server that is to drive it; say what is wrong, and the remedy.",
        "embodied_rl.deployment.configuration:RobotDoctorConfig",
        "embodied_rl.deployment.commands.doctor:run",
        ("robot=my_arm.yaml", "robot=my_arm.yaml policy=ws://192.168.1.5:8000"),
        values=("robot", "policy"),
        json=True,
    ),
    Command(
        "list",
        "Show the robots that are described here.",
        None,
        "embodied_rl.deployment.commands.list_robots:run",
    ),
)
# fmt: on
