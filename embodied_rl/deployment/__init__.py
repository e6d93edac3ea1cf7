"""How a policy leaves: a server for it, the executor, the safety filter, ROS 2, robots and what they recorded."""
