"""Light pictures: fewer triangles where nothing collides, nearly the same to look at, and physics untouched."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims import light
from tests.support.libero import Run


def sphere(rings: int) -> tuple[Array, Array]:
    """A closed surface of radius 1 and its triangles, outwards."""
    high, round_ = np.meshgrid(np.linspace(0, np.pi, rings), np.linspace(0, 2 * np.pi, 2 * rings)[:-1], indexing="ij")
    points = np.stack([np.sin(high) * np.cos(round_), np.sin(high) * np.sin(round_), np.cos(high)], axis=-1)
    number = np.arange(high.size).reshape(high.shape)
    a, b = number[:-1], number[1:]
    c, d = np.roll(a, -1, axis=1), np.roll(b, -1, axis=1)
    faces = np.concatenate([np.stack(each, axis=-1).reshape(-1, 3) for each in ((a, b, c), (b, d, c))])
    return points.reshape(-1, 3), faces


def volume(vertices: Array, faces: Array) -> float:
    """Within a closed surface, by the divergence theorem."""
    a, b, c = vertices[faces].transpose(1, 0, 2)
    return float((a * np.cross(b, c)).sum() / 6)


def test_a_sphere_stays_a_sphere() -> None:
    vertices, faces = sphere(60)
    left, corners = light.merge_vertices(vertices, faces, cell=0.1)
    assert 0 < len(left) < len(faces) / 4
    assert volume(vertices, corners) == pytest.approx(4 / 3 * np.pi, rel=0.05)
    moved = np.linalg.norm(vertices[corners] - vertices[faces[left]], axis=-1)
    assert 0 < moved.max() <= 0.1 * np.sqrt(3)


def test_triangles_are_not_shrunk_and_not_repeated() -> None:
    vertices, faces = sphere(60)
    _, corners = light.merge_vertices(vertices, faces, cell=0.1)
    assert all(len(set(face)) == 3 for face in corners.tolist())
    turned = {tuple(np.roll(face, -int(face.argmin())).tolist()) for face in corners}
    assert len(turned) == len(corners)


def test_both_sides_of_a_sheet_are_kept() -> None:
    vertices = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    left, corners = light.merge_vertices(vertices, np.array([[0, 1, 2], [2, 1, 0], [1, 2, 0]]), cell=0.1)
    assert left.tolist() == [0, 1] and corners.tolist() == [[0, 1, 2], [2, 1, 0]]


def test_cells_smaller_than_triangles_change_nothing() -> None:
    vertices, faces = np.random.default_rng(0).uniform(size=(30, 3)), np.arange(30).reshape(10, 3)
    left, corners = light.merge_vertices(vertices, faces, cell=1e-6)
    assert np.array_equal(left, np.arange(10)) and np.array_equal(corners, faces)


def test_of_a_cell_the_vertex_nearest_to_its_middle_stays() -> None:
    along = np.array([0.0, 0.4, 0.9, 2.5, 4.5])
    vertices = np.stack([along, along**2, along], axis=1)
    left, corners = light.merge_vertices(vertices, np.array([[0, 3, 4], [3, 2, 4]]), cell=1.0)
    assert left.tolist() == [0, 1] and corners.tolist() == [[1, 3, 4], [3, 1, 4]]


MESHES = ("seen", "colliding", "in a pair", "small")


def model(prefix: str = "") -> SimpleNamespace:
    """What a compiled model has of four spheres, each of one geometry; each corner's normal is a number of its own."""
    vertices, faces = sphere(40)
    small_vertices, small_faces = sphere(8)
    counts = np.array([*[len(faces)] * 3, len(small_faces)])
    sizes = np.array([*[len(vertices)] * 3, len(small_vertices)])
    corners = np.arange(3 * counts.sum()).reshape(-1, 3)
    return SimpleNamespace(
        nmesh=4,
        mesh=lambda number: SimpleNamespace(name=prefix + MESHES[number]),
        mesh_facenum=counts,
        mesh_faceadr=np.cumsum(counts) - counts,
        mesh_vertnum=sizes,
        mesh_vertadr=np.cumsum(sizes) - sizes,
        mesh_vert=0.12 * np.concatenate([vertices] * 3 + [small_vertices]),
        mesh_face=np.concatenate([faces] * 3 + [small_faces]),
        mesh_facenormal=corners.copy(),
        mesh_facetexcoord=corners.copy(),
        geom_contype=np.array([0, 0, 0, 0]),
        geom_conaffinity=np.array([0, 1, 0, 0]),
        geom_dataid=np.arange(4),
        pair_geom1=np.array([2]),
        pair_geom2=np.array([2]),
    )


@pytest.mark.parametrize("prefix", ["", "robot0_"])
def test_only_large_meshes_that_cannot_collide_change(prefix: str) -> None:
    before, after = model(prefix), model(prefix)
    light.coarsen_meshes(after)
    assert (after.mesh_facenum < before.mesh_facenum).tolist() == [True, False, False, False], MESHES
    first = before.mesh_facenum[0]
    for name, array in vars(before).items():
        if not isinstance(array, np.ndarray):
            continue
        begin = {"mesh_face": first, "mesh_facenormal": first, "mesh_facetexcoord": first, "mesh_facenum": 1}.get(
            name, 0
        )
        assert np.array_equal(getattr(after, name)[begin:], array[begin:]), name


@pytest.mark.parametrize(("prefix", "cell"), [("", 0.01), ("robot0_", 0.015), ("mount0_", 0.015)])
def test_corners_keep_their_normals_and_their_places_in_the_texture(prefix: str, cell: float) -> None:
    before, after = model(prefix), model(prefix)
    light.coarsen_meshes(after)
    count = after.mesh_facenum[0]
    triangles = after.mesh_facenormal[:count, 0] // 3
    assert np.array_equal(after.mesh_facenormal[:count], before.mesh_facenormal[triangles])
    assert np.array_equal(after.mesh_facetexcoord[:count], before.mesh_facetexcoord[triangles])
    moved = np.linalg.norm(
        before.mesh_vert[after.mesh_face[:count]] - before.mesh_vert[before.mesh_face[triangles]], axis=-1
    )
    assert 0 < moved.max() <= cell * np.sqrt(3)


@pytest.fixture(scope="module")
def lighter(run: Run, assets: Path) -> dict[str, Array]:
    return run(("lighter", {"assets": assets}))[0]


@pytest.mark.sim
def test_physics_are_those_of_official_rendering(lighter: dict[str, Array]) -> None:
    assert np.array_equal(lighter["light_physics"], lighter["official_physics"])
    assert not np.array_equal(lighter["light_physics"][0], lighter["light_physics"][-1]), "nothing moved in this test"


@pytest.mark.sim
def test_models_differ_in_what_is_seen_and_in_nothing_else(lighter: dict[str, Array]) -> None:
    seen = {"light_castshadow", "mat_reflectance"}
    triangles = {"mesh_face", "mesh_facenum", "mesh_facenormal", "mesh_facetexcoord"}
    assert set(lighter["differing"]) - seen == triangles


@pytest.mark.sim
def test_there_are_far_fewer_triangles_but_not_where_things_collide(lighter: dict[str, Array]) -> None:
    solid, before, after = lighter["solid"], lighter["official_faces"], lighter["light_faces"]
    assert solid.any() and np.array_equal(before[solid], after[solid])
    assert after[~solid].sum() < before[~solid].sum() / 5


@pytest.mark.sim
@pytest.mark.parametrize("camera", ["agentview", "robot0_eye_in_hand"])
def test_pictures_hardly_differ_from_those_of_all_triangles(lighter: dict[str, Array], camera: str) -> None:
    """By 1 of 255 on average, at most; shadows, reflections and edges are four times that."""
    few, all_, official = (lighter[f"{name}_{camera}"].astype(float) for name in ("light", "plain", "official"))
    difference = np.abs(few - all_).mean()
    assert 0 < difference < 1
    assert difference < np.abs(all_ - official).mean() / 4
