"""Acting while thinking: the executor of action chunks on a robot or in simulation. Pure, with NumPy alone."""
