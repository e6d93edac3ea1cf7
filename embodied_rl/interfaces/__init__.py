"""The interfaces between simulators, policies and the engine. Start with `sim.py`, then `policy.py`."""
