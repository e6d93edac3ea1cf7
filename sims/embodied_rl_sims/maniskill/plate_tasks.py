"""RL4VLA's put-on-plate tasks (arXiv:2505.19789), registered as tasks of ManiSkill when this module is imported.

Poses, the rule of success and pictures are those of RL4VLA's `put_on_in_scene_multi.py`, the reward that of RLinf's
`maniskill_env.py`. Here a batch of environments does not wait until things lie still: RLinf's does not either.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from embodied_rl_sims.maniskill.plate_parts import Files, Kind, Shapes, list_things
from embodied_rl_sims.maniskill.plate_pictures import Backgrounds
from embodied_rl_sims.maniskill.plate_scenes import (
    HORIZON,
    SPLITS,
    Scene,
    count_scenes,
    find_poses,
    find_scene,
    is_on_plate,
    list_joints,
)

BaseEnv: Any = import_module("mani_skill.envs.sapien_env").BaseEnv
Pose: Any = import_module("mani_skill.utils.structs.pose").Pose
sapien: Any = import_module("sapien")

JOINTS = np.array([-0.01840777, 0.0398835, 0.22242722, -0.00460194, 1.36524296, 0.00153398, 0.037, 0.037])
BASE, ASIDE = sapien.Pose([0.147, 0.028, 0.870], [0, 0, 0, 1]), sapien.Pose([0.147, 0.028, 1.870], [0, 0, 0, 1])
"""Where the robot stands, and where it waits until the things lie still."""
SETTLE, LONGER = 50, 600
"""Physics steps until things lie still, and further ones if they do not."""
MOVES_AT = 5
"""Control step at which the object is put elsewhere, in the task that does so."""
CAMERA = "3rd_view_camera"


class PutOnPlate(BaseEnv):
    """A put-on-plate task. `numbers` holds each environment's next scene by its official number, or None to draw it.

    Args:
        task: a key of `SPLITS`. shapes: whether shapes stand for the things, the table and the robot.
        assets: folder of RLinf's assets.
    """

    SUPPORTED_REWARD_MODES = ("sparse", "dense", "normalized_dense", "none")

    def __init__(self, *args: Any, task: str, shapes: bool = False, assets: str = "", **keys: Any) -> None:
        count = keys.get("num_envs", 1)
        self.split, self.parts = SPLITS[task], Shapes() if shapes else Files(assets)
        self.numbers: list[int | None] = [None] * count
        self.scenes: list[Scene] = [find_scene(self.split, 0)] * count
        self.backgrounds = Backgrounds(self.parts, task)
        self._sizes, self._earned = torch.zeros(2, count, 3), torch.zeros(count)
        self._grasps, self._seen = torch.zeros(2, count, dtype=torch.int64)
        self._once = torch.zeros(2, count, dtype=torch.bool)
        super().__init__(*args, robot_uids=self.parts.find_robot(), **keys)

    @property
    def instructions(self) -> list[str]:
        return [scene.instruction for scene in self.scenes]

    @property
    def _default_sim_config(self) -> Any:
        return import_module("mani_skill.utils.structs.types").SimConfig(sim_freq=500, control_freq=5, spacing=20)

    @property
    def _default_human_render_camera_configs(self) -> Any:
        pose = import_module("mani_skill.utils.sapien_utils").look_at([-0.7, 0.4, 1.35], [-0.08, 0.0, 0.92])
        camera = import_module("mani_skill.sensors.camera").CameraConfig
        return camera("render_camera", pose=pose, width=512, height=512, fov=0.9, near=0.01, far=100)

    def _load_agent(self, options: dict[str, Any]) -> None:
        super()._load_agent(options, sapien.Pose([0.127, 0.060, 0.85], [0, 0, 0, 1]))

    def _load_scene(self, options: dict[str, Any]) -> None:
        shine = import_module("mani_skill.utils.sapien_utils").set_articulation_render_material
        for robot in self.agent.robot._objs:
            shine(robot, specular=0.9, roughness=0.3)
        self.parts.make_table(self.scene)
        listed = list_things(self.split).items()
        self.things = {kind: {each: self._make(kind, each) for each in numbers} for kind, numbers in listed}

    def _make(self, kind: Kind, number: int) -> Any:
        return self.parts.make_thing(self.scene, kind, number, sapien.Pose(_wait_at(kind, number)))

    def _load_lighting(self, options: dict[str, Any]) -> None:
        self.scene.set_ambient_light([0.3] * 3)
        self.scene.add_directional_light([0, 0, -1], [2.2] * 3)
        self.scene.add_directional_light([-1, -0.5, -1], [0.7] * 3)
        self.scene.add_directional_light([1, 1, -1], [0.7] * 3)

    def _after_reconfigure(self, options: dict[str, Any]) -> None:
        things = [body for kind in self.things.values() for body in kind.values()]
        shown = [each.entity.per_scene_id for link in self.agent.robot.get_links() for each in link._objs[:1]]
        self.shown = torch.tensor([*shown, *(int(body.per_scene_id[0]) for body in things)], device=self.device)

    def _initialize_episode(self, env_idx: Any, options: dict[str, Any]) -> None:
        """Set up scenes. Their numbers are drawn as by RL4VLA, which gives the same scene for the same seed."""
        drawn = torch.randint(0, count_scenes(self.split), (len(env_idx),), device=self.device)
        rows: list[int] = env_idx.cpu().numpy().tolist()
        for row, number in zip(rows, drawn.cpu().numpy(), strict=True):
            given = self.numbers[row]
            self.scenes[row] = find_scene(self.split, int(number) if given is None else given)
        self.agent.robot.set_pose(ASIDE)
        self._place(rows)
        if not self.gpu_sim_enabled:
            self._settle()
        self.agent.robot.set_pose(BASE)
        joints = np.tile(JOINTS, (len(rows), 1))
        if self.split.extra == "robot":
            joints[:, :6] += list_joints()[[self.scenes[row].extra or 0 for row in rows]]
        self.agent.reset(init_qpos=torch.tensor(joints, dtype=torch.float32, device=self.device))
        self._begin_counting(rows)

    def _place(self, rows: Sequence[int], third: bool = False) -> None:
        """Place the things of some environments; all others wait beside the scene. `third`: the object's last place."""
        chosen = [find_poses(self.split, self.scenes[row], third) for row in rows]
        for kind in ("carrot",) if third else ("carrot", "plate"):
            for number, body in self.things[kind].items():
                waiting = (*_wait_at(kind, number), 0.0, 0.0, 0.0, 1.0)
                poses = np.array([of_row.get((kind, number), waiting) for of_row in chosen])
                body.set_pose(Pose.create(torch.tensor(poses, dtype=torch.float32, device=self.device)))

    def _settle(self) -> None:
        for _ in range(SETTLE):
            self.scene.step()
        pair = self._both(lambda body: body.linear_velocity), self._both(lambda body: body.angular_velocity)
        linear, angular = (float(each.norm(dim=(1, 2)).sum()) for each in pair)
        for _ in range(LONGER if linear > 1e-3 or angular > 1e-2 else 0):
            self.scene.step()

    def _begin_counting(self, rows: Sequence[int]) -> None:
        """Measure the things as they lie, and forget the episode before."""
        turn = import_module("mani_skill.utils.geometry.rotation_conversions").quaternion_to_matrix
        find = self.parts.find_size
        own = np.array([[find("carrot", each.object), find("plate", each.plate)] for each in self.scenes])
        own = torch.tensor(own, dtype=torch.float32, device=self.device).transpose(0, 1)[..., None]
        lying = turn(self._both(lambda body: body.pose.q)).abs() @ own
        for name in ("_sizes", "_earned", "_grasps", "_seen", "_once"):
            setattr(self, name, getattr(self, name).to(self.device))
        self._sizes[:, rows] = lying[:, rows, :, 0]
        self._earned[rows], self._grasps[rows], self._seen[rows], self._once[:, rows] = 0.0, 0, 0, False

    def _both(self, read: Callable[[Any], Any]) -> Any:
        """Read a tensor [n, k] of each environment's object and plate: [2, n, k]."""
        objects, plates = self.things["carrot"], self.things["plate"]
        first = self._of_each([scene.object for scene in self.scenes], lambda number: read(objects[number]))
        return torch.stack([first, self._of_each([scene.plate for scene in self.scenes], lambda n: read(plates[n]))])

    def _of_each(self, keys: Sequence[Any], read: Callable[[Any], Any]) -> Any:
        """Return row i of `read(keys[i])`, for each environment i."""
        found = {key: read(key) for key in dict.fromkeys(keys)}
        return torch.stack([found[key][row] for row, key in enumerate(keys)])

    def evaluate(self) -> dict[str, Any]:
        """Return the official facts. Grasps are counted once for each control step, however often it is called."""
        fresh, self._seen = self._elapsed_steps != self._seen, self._elapsed_steps.clone().long()
        moved = (fresh & (self._seen == MOVES_AT)).nonzero().flatten().tolist()
        if self.split.places == "three" and self.split.extra is None and moved:
            self._move(moved)
        grasped, force = self._touch()
        self._grasps = torch.where(fresh, (self._grasps + 1) * grasped, self._grasps)
        self._once |= torch.stack([grasped, self._grasps >= 5])
        things = self._both(lambda body: body.pose.p)
        hand = (self.agent.finger1_link.pose.p + self.agent.finger2_link.pose.p) / 2
        success = is_on_plate(things[0] - things[1], self._sizes[0], self._sizes[1], force)
        return {
            "is_src_obj_grasped": self._once[0].clone(),
            "consecutive_grasp": self._once[1].clone(),
            "src_on_target": success,
            "gripper_carrot_dist": (hand - things[0]).norm(dim=1),
            "gripper_plate_dist": (hand - things[1]).norm(dim=1),
            "carrot_plate_dist": (things[0] - things[1]).norm(dim=1),
            "success": success,
        }

    def _touch(self) -> tuple[Any, Any]:
        """Return whether each object is grasped, bool [n], and the force between it and its plate [n]."""
        objects, plates = self.things["carrot"], self.things["plate"]
        grasped = self._of_each([scene.object for scene in self.scenes], lambda n: self.agent.is_grasping(objects[n]))
        pairs = [(scene.object, scene.plate) for scene in self.scenes]
        between = self.scene.get_pairwise_contact_forces
        return grasped, self._of_each(pairs, lambda n: between(objects[n[0]], plates[n[1]])).norm(dim=1)

    def _move(self, rows: Sequence[int]) -> None:
        """Put the object of some environments in its third place."""
        self.scene._reset_mask = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.scene._reset_mask[rows] = True
        self._place(rows, third=True)
        self.scene._reset_mask[:] = True
        for _ in range(0 if self.gpu_sim_enabled else SETTLE):
            self.scene.step()

    def compute_dense_reward(self, obs: Any, action: Any, info: dict[str, Any]) -> Any:
        """Return what is new of RLinf's sum: 0.1 for a grasp, 0.1 for one of five steps, 1 for success after one."""
        grasp = info["is_src_obj_grasped"]
        total = 0.1 * grasp + 0.1 * info["consecutive_grasp"] + 1.0 * (info["success"] & grasp)
        gained, self._earned = total - self._earned, total
        return gained

    def compute_normalized_dense_reward(self, obs: Any, action: Any, info: dict[str, Any]) -> Any:
        return self.compute_dense_reward(obs, action, info) / 1.2

    def _get_obs_agent(self) -> dict[str, Any]:
        """Return the joint positions, which RLinf's policies read; in state modes also the rest."""
        return super()._get_obs_agent() if self.obs_mode_struct.use_state else {"qpos": self.agent.robot.get_qpos()}

    def _get_obs_extra(self, info: dict[str, Any]) -> dict[str, Any]:
        if not self.obs_mode_struct.use_state:
            return {}
        poses = self._both(lambda body: body.pose.raw_pose)
        hand = self.agent.robot.links_map["ee_gripper_link"].pose.raw_pose
        return {"object_pose": poses[0], "plate_pose": poses[1], "hand_pose": hand, "object_size": self._sizes[0]}

    def _get_obs_sensor_data(self, apply_texture_transforms: bool = True) -> dict[str, Any]:
        """Draw the camera, with the table's picture behind robot and things."""
        drawn = super()._get_obs_sensor_data(apply_texture_transforms)
        if "rgb" in drawn.get(CAMERA, {}):
            marks = self.scene.sensors[CAMERA].get_obs(rgb=False, depth=False, position=False, segmentation=True)
            seen = torch.isin(marks["segmentation"], self.shown.to(marks["segmentation"].device))
            drawn[CAMERA]["rgb"] = self.backgrounds.put_behind(drawn[CAMERA]["rgb"], seen[..., :1], self.scenes)
        return drawn


def _wait_at(kind: str, number: int) -> tuple[float, float, float]:
    """Return where a thing waits that is in no scene."""
    return (1.0 if kind == "carrot" else 2.0), 0.3 * number, 1.0


def _register() -> None:
    register: Any = import_module("mani_skill.utils.registration").register_env
    for task in SPLITS:
        register(task, max_episode_steps=HORIZON, task=task)(PutOnPlate)


_register()
