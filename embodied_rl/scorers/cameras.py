"""Which cameras scorers see."""

from embodied_rl.interfaces.sim import SimulatorSpec


def list_scored_cameras(spec: SimulatorSpec) -> list[str]:
    """Return the cameras whose pictures scorers see: those with the role "score", or else the policy's."""
    by_role = {role: [camera.name for camera in spec.cameras if camera.role == role] for role in ("score", "policy")}
    return by_role["score"] or by_role["policy"]
