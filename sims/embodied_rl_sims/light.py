"""Cheaper rendering with MuJoCo: no shadows, reflections or antialiasing, and coarser meshes.

Without a graphics card the time of a picture depends on its triangles, and most belong to the robot: of 179,000 in the
first scene of libero_spatial, arm, hand and pedestal have 168,000; of 67,000 in MetaWorld's push-v3, 66,500.
"""

from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array

NEAR, ROBOT = (1000, 24, 0.02), (300, 6, 0.015)
"""Minimum number of triangles of a mesh that is simplified, cells along its longest side, and the maximum cell size in
metres: for meshes that a camera may see from near, and for the arm and its pedestal."""

ROBOSUITE_ARM = ("robot0_", "mount0_")
"""Prefix of the arm's meshes in robosuite; the gripper has its own."""


def simplify_model(model: Any, arm: tuple[str, ...] = ROBOSUITE_ARM, colliding: bool = False) -> None:
    """Simplify the rendering of a compiled model; call it before the renderer is made. See `coarsen_meshes`."""
    model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
    model.light_castshadow[:] = 0
    model.mat_reflectance[:] = 0
    coarsen_meshes(model, arm, colliding)


def coarsen_meshes(model: Any, arm: tuple[str, ...] = ROBOSUITE_ARM, colliding: bool = False) -> None:
    """Reduce the triangles of the large meshes.

    Only the triangles of these meshes change in the compiled model: masses, frames, vertices and hulls stay, so physics
    stays the same to the bit. (Rays would hit other surfaces; these simulators cast none.)

    Args:
        model: MuJoCo's compiled model.
        arm: prefixes of the names of meshes that may be coarser than others.
        colliding: whether meshes that can collide become coarser, too; MuJoCo collides their hulls.
    """
    collides = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    collides[model.pair_geom1] = collides[model.pair_geom2] = True
    kept = set() if colliding else set(model.geom_dataid[collides].tolist())
    for mesh in set(range(model.nmesh)) - kept:
        first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        least, cells, most = ROBOT if model.mesh(mesh).name.startswith(arm) else NEAR
        if count < least:
            continue
        begin, faces = model.mesh_vertadr[mesh], slice(first, first + count)
        vertices = model.mesh_vert[begin : begin + model.mesh_vertnum[mesh]]
        cell = min(np.ptp(vertices, axis=0).max() / cells, most)
        left, corners = merge_vertices(vertices, model.mesh_face[faces], cell)
        fewer = slice(first, first + len(left))
        model.mesh_face[fewer] = corners
        for of_corners in (model.mesh_facenormal, model.mesh_facetexcoord):  # normal, texture coordinate of each corner
            of_corners[fewer] = of_corners[faces][left]
        model.mesh_facenum[mesh] = len(left)


def merge_vertices(vertices: Array, faces: Array, cell: float) -> tuple[Array, Array]:
    """Merge all vertices of each grid cell into one of them (vertex clustering); return the remaining triangles.

    Rossignac and Borrel, Multi-resolution 3D approximations for rendering complex scenes (1993).

    Args:
        vertices: float [n, 3].
        faces: int [m, 3], the vertices of each triangle.
        cell: the grid's spacing, in the vertices' unit.

    Returns:
        The remaining triangles, int [k], ascending, without those shrunk to a line or repeated; and their vertices, int
        [k, 3]. Each vertex moves by at most a cell's diagonal.
    """
    corners = _representative(vertices, cell)[faces]
    shrunk = (corners == np.roll(corners, 1, axis=1)).any(axis=1)
    turns = (corners.argmin(axis=1)[:, None] + np.arange(3)) % 3
    _, once = np.unique(_key(np.take_along_axis(corners, turns, axis=1)), return_index=True)
    left = np.sort(once[~shrunk[once]])
    return left, corners[left]


def _representative(vertices: Array, cell: float) -> Array:
    """Return for each vertex the vertex nearest to the mean of the vertices in its cell, int [n]."""
    cells = np.floor((vertices - vertices.min(axis=0)) / cell).astype(np.int64)
    _, group, counts = np.unique(_key(cells), return_inverse=True, return_counts=True)
    middle = np.stack([np.bincount(group, axis) for axis in vertices.T], axis=1) / counts[:, None]
    order = np.lexsort((np.square(vertices - middle[group]).sum(axis=1), group))
    return order[np.cumsum(counts) - counts][group]


def _key(rows: Array) -> Array:
    """Encode each row of three numbers from 0 to below two million as one number; `np.unique` is slow on rows."""
    most = int(rows.max()) + 1
    return rows @ np.array([most * most, most, 1], np.int64)
