"""What a robot is commanded in each tick, and why: the deployment core. Pure, with NumPy alone."""
