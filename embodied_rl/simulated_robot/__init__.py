"""A simulated robot as a ROS 2 node, in real time or in lockstep: topics, commands and injected faults."""
