"""Trials of a policy on a robot: server, bridge and a simulated robot as processes, episodes, report, film, figures."""
