"""A robot reached over topics as a `Simulator` of one environment, for `eval`, `collect` and `train`."""

SIMS = {"robot": "embodied_rl.robot_simulator.simulator:RobotSimulator"}
