"""A simulator's robot as a node of ROS 2, in real time or in lockstep: what it publishes, obeys and gets wrong."""
