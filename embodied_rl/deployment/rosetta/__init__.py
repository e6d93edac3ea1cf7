"""Convert between robot files and contracts of rosetta, a bridge of ROS 2 and LeRobot (docs/robots/rosetta.md)."""
