"""Run a policy on a simulated robot over ROS 2: processes, episodes, report, video, measurements."""
