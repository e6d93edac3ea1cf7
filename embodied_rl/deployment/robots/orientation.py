"""Roll, pitch and yaw about fixed axes x, y, z (REP 103), and quaternions [x, y, z, w]."""

import math


def make_quaternion(roll: float, pitch: float, yaw: float) -> tuple[float, float, float, float]:
    """Return the unit quaternion (x, y, z, w) of three angles in radians."""
    sr, cr = math.sin(roll / 2), math.cos(roll / 2)
    sp, cp = math.sin(pitch / 2), math.cos(pitch / 2)
    sy, cy = math.sin(yaw / 2), math.cos(yaw / 2)
    return (
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    )


def find_angles(x: float, y: float, z: float, w: float) -> tuple[float, float, float]:
    """Return roll, pitch and yaw in radians of a unit quaternion; pitch within ±π/2."""
    roll = math.atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = math.asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    yaw = math.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return roll, pitch, yaw
