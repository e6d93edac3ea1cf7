"""A robot behind topics as a `Simulator` of one environment, so that `eval`, `collect` and `train` work on it."""

SIMS = {"robot": "embodied_rl.deployment.robot_simulator.simulator:RobotSimulator"}
