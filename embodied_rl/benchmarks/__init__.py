"""What `embodied-rl bench` measures: a simulator's speed, the overlap of simulation and inference, busy cores."""
