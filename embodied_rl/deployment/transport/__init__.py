"""Messages of ROS 2 between processes, without an installation of ROS 2 or with one (docs/ros2.md).

`interface.py` is what others use, `opening.py` opens a transport by its name. The extra `ros2` brings what they need;
nothing of it is imported before it is used.
"""
