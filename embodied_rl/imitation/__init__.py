"""Learning from demonstrations: recording them, drawing from them, cloning them."""
