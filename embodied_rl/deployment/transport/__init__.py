"""Publish and subscribe to ROS 2 topics, with or without an installation of ROS 2 (docs/ros2.md).

`interface.py` defines the interface, `opening.py` opens a transport by name. The packages for ROS 2 are
imported on first use.
"""
