"""Flow policies as Markov chains: noise, schedule, transitions and samplers. Imports PyTorch and NumPy only."""
