"""`embodied-rl deploy`: a policy on a simulated robot over ROS 2, as on a real one: server, bridge and robot."""

from embodied_rl.benchmarks.trials.deployment import check_deployment, deploy_policy

run, check_start = deploy_policy, check_deployment
