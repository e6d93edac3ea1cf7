"""Measurements behind `embodied-rl bench`: simulator speed, overlap of simulation and inference, core usage, memory."""
