"""Plan a training run: measure the stage costs, predict the speed of each allocation, and choose the best one."""
