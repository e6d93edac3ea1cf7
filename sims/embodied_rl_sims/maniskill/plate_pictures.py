"""Pictures behind robot and things of the put-on-plate tasks, and textures mixed into them, as RL4VLA's code does."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from embodied_rl_sims.maniskill.plate_parts import Parts
from embodied_rl_sims.maniskill.plate_scenes import SPLITS, Scene


class Backgrounds:
    """Backgrounds of one task's scenes.

    Args:
        parts: they draw tables and textures.
        task: its name states how much of a texture is mixed in, 0.3 or 0.5, and where: on robot and things, or
            everywhere.
    """

    def __init__(self, parts: Parts, task: str) -> None:
        self.parts, self.textured = parts, SPLITS[task].extra == "texture"
        self.whole, self.share = "VisionWhole" in task, 0.3 if "03" in task else 0.5
        self.table = lru_cache(maxsize=None)(lambda *key: torch.tensor(parts.draw_table(*key)))
        self.texture = lru_cache(maxsize=None)(self._draw_texture)

    def put_behind(self, picture: Any, seen: Any, scenes: Sequence[Scene]) -> Any:
        """Put the scenes' tables behind what is seen.

        Args:
            picture: uint8 [n, h, w, 3]. seen: bool [n, h, w, 1], whether a pixel shows the robot or a thing.
        """
        height, width = picture.shape[1:3]
        tables = torch.stack([self.table(scene.table, width, height) for scene in scenes]).to(picture.device)
        front = picture.float()
        if self.textured and not self.whole:
            front = torch.stack([self._cover(*row) for row in zip(front, seen[..., 0], scenes, strict=True)])
        mixed = torch.where(seen, front, tables.float())
        if self.whole:
            mixed = torch.stack([self._veil(*row) for row in zip(mixed, seen[..., 0], scenes, strict=True)])
        return mixed.clamp(0, 255).to(torch.uint8)

    def _draw_texture(self, number: int, width: int, height: int) -> tuple[Any, float]:
        texture, mix = self.parts.draw_texture(number, width, height)
        return torch.tensor(texture).float(), mix * self.share

    def _cover(self, picture: Any, seen: Any, scene: Scene) -> Any:
        """Mix the scene's texture, shrunk to the box around robot and things, into that box."""
        top, bottom, left, right = _find_box(seen)
        texture, mix = self.texture(scene.extra or 0, picture.shape[1], picture.shape[0])
        size = bottom - top + 1, right - left + 1
        small = torch.nn.functional.interpolate(
            texture.to(picture.device).permute(2, 0, 1)[None], size, mode="bilinear"
        )
        part = (slice(top, bottom + 1), slice(left, right + 1))
        covered = picture.clone()
        covered[part] = small[0].permute(1, 2, 0) * mix + picture[part] * (1 - mix)
        return covered

    def _veil(self, picture: Any, seen: Any, scene: Scene) -> Any:
        """Mix a part of the scene's texture, of twice the size, into the whole picture; robot and things shift it."""
        height, width = picture.shape[:2]
        top, bottom, left, right = _find_box(seen)
        down = min(max((top + bottom) // 2, 1), height - 1)
        across = min(max((left + right) // 2, 1), width - 1)
        texture, mix = self.texture(scene.extra or 0, 2 * width, 2 * height)
        part = texture[down : down + height, across : across + width].to(picture.device)
        return picture * (1 - mix) + part * mix


def _find_box(seen: Any) -> tuple[int, int, int, int]:
    """Return the first and last row, and column, of the pixels that are seen; zeros if none is."""
    rows, columns = (seen.any(dim=axis).nonzero().flatten().tolist() or [0] for axis in (1, 0))
    return rows[0], rows[-1], columns[0], columns[-1]
