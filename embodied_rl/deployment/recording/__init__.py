"""Record the ROS 2 topics of a robot in a separate process, and read recordings as episodes."""
