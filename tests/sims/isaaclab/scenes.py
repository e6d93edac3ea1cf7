"""Scenes of shapes that stand for the robots of Isaac Lab's tasks, whose own files are on NVIDIA's server."""

from pathlib import Path

from pxr import Gf, Usd, UsdGeom, UsdPhysics

Vector = tuple[float, float, float]


class Robot:
    """A USD file of boxes and joints, with the names of a robot's bodies and joints."""

    def __init__(self, path: Path, name: str) -> None:
        self.stage = Usd.Stage.CreateNew(str(path))
        UsdGeom.SetStageUpAxis(self.stage, UsdGeom.Tokens.z)
        UsdGeom.SetStageMetersPerUnit(self.stage, 1.0)
        self.root = f"/{name}"
        prim = UsdGeom.Xform.Define(self.stage, self.root).GetPrim()
        self.stage.SetDefaultPrim(prim)
        UsdPhysics.ArticulationRootAPI.Apply(prim)

    def body(self, name: str, size: Vector, at: Vector, mass: float) -> None:
        body = UsdGeom.Xform.Define(self.stage, f"{self.root}/{name}")
        body.AddTranslateOp().Set(Gf.Vec3d(*at))
        UsdPhysics.RigidBodyAPI.Apply(body.GetPrim())
        properties = UsdPhysics.MassAPI.Apply(body.GetPrim())
        properties.CreateMassAttr(mass)
        properties.CreateDiagonalInertiaAttr(Gf.Vec3f(*(mass * 0.1,) * 3))
        box = UsdGeom.Cube.Define(self.stage, f"{self.root}/{name}/box")
        box.CreateSizeAttr(1.0)
        box.AddScaleOp().Set(Gf.Vec3f(*size))

    def joint(
        self, kind: str, name: str, parent: str | None, child: str, at: Vector, limit: float | None = None
    ) -> None:
        """Add a joint: "Fixed", "Prismatic:Y" or "Revolute:X", at a point of the child's frame.

        Bodies start without rotation, so that the point in the parent's frame follows from their places.
        """
        sort, _, axis = kind.partition(":")
        joint = getattr(UsdPhysics, f"{sort}Joint").Define(self.stage, f"{self.root}/{name}")
        joint.CreateBody1Rel().SetTargets([f"{self.root}/{child}"])
        joint.CreateLocalPos1Attr(Gf.Vec3f(*at))
        place = self._place(child) + Gf.Vec3d(*at)
        if parent is not None:
            joint.CreateBody0Rel().SetTargets([f"{self.root}/{parent}"])
            place -= self._place(parent)
        joint.CreateLocalPos0Attr(Gf.Vec3f(place))
        if sort == "Fixed":
            return
        joint.CreateAxisAttr(axis)
        if limit is not None:
            joint.CreateLowerLimitAttr(-limit)
            joint.CreateUpperLimitAttr(limit)
        UsdPhysics.DriveAPI.Apply(joint.GetPrim(), "linear" if sort == "Prismatic" else "angular")

    def save(self) -> None:
        self.stage.Save()

    def _place(self, name: str) -> Gf.Vec3d:
        return (
            UsdGeom.Xformable(self.stage.GetPrimAtPath(f"{self.root}/{name}"))
            .GetLocalTransformation()
            .ExtractTranslation()
        )


def write_arm(path: Path) -> None:
    """Write an arm of seven joints and two fingers with the names of Franka's."""
    robot, height = Robot(path, "panda"), 0.0
    robot.body("panda_link0", (0.1, 0.1, 0.1), (0, 0, 0), 2.0)
    robot.joint("Fixed", "root_joint", None, "panda_link0", (0, 0, 0))
    lengths, axes = (0.1, 0.25, 0.2, 0.2, 0.15, 0.1, 0.1), "ZYZYZYZ"
    for number, (length, axis) in enumerate(zip(lengths, axes, strict=True), start=1):
        name = f"panda_link{number}"
        robot.body(name, (0.05, 0.05, length * 0.9), (0, 0, height + length / 2), 0.5)
        robot.joint(
            f"Revolute:{axis}", f"panda_joint{number}", f"panda_link{number - 1}", name, (0, 0, -length / 2), 200
        )
        height += length
    robot.body("panda_hand", (0.08, 0.05, 0.04), (0, 0, height + 0.02), 0.3)
    robot.joint("Fixed", "panda_hand_joint", "panda_link7", "panda_hand", (0, 0, 0))
    for side, name in ((-1, "left"), (1, "right")):
        robot.body(f"panda_{name}finger", (0.01, 0.01, 0.04), (0, 0.02 * side, height + 0.06), 0.05)
        joint = f"panda_finger_joint{1 if name == 'left' else 2}"
        robot.joint("Prismatic:Y", joint, "panda_hand", f"panda_{name}finger", (0, 0, 0), 0.04)
    robot.save()
