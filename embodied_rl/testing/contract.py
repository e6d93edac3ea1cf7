"""Contract checks that authors of plug-ins call in their tests; each raises `AssertionError` with the fault."""

from embodied_rl.testing.algorithm_contract import check_algorithm
from embodied_rl.testing.policy_contract import check_actor, check_backbone
from embodied_rl.testing.servo_contract import check_servo
from embodied_rl.testing.simulator_contract import check_simulator

__all__ = ["check_actor", "check_algorithm", "check_backbone", "check_servo", "check_simulator"]
