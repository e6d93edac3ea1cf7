"""Flow policies as Markov chains: noise, schedule, transitions and samplers. PyTorch and NumPy only."""
