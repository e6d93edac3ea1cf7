"""A judge beside the simulator's reward: what it is asked, how it answers, how late scores become rewards."""
