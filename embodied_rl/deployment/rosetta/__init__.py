"""Contracts of rosetta (ROS 2 and lerobot): a robot's file as a contract, and back (docs/robots.md)."""
