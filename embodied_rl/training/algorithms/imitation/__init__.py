"""Learning from demonstrations: recording, sampling and cloning them."""
