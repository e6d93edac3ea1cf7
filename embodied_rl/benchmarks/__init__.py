"""Measurements behind `embodied-rl bench`, and a policy on a simulated robot (`robot_runs`)."""
