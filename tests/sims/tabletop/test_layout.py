"""Scenes: drawn from the episode alone, free of overlaps, unambiguous; held-out splits really held out."""

from collections.abc import Iterator

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.tabletop.layout import (
    COLOURS,
    FAMILIES,
    FIXTURES,
    KINDS,
    SPLITS,
    START,
    TASKS,
    WORDS,
    Layout,
    draw_layout,
)

SEEDS = 60


def layouts(split: str = "train", seeds: int = SEEDS, randomise: bool = True) -> Iterator[tuple[int, Layout]]:
    """(task, scene) for every task and many seeds."""
    for task in range(len(TASKS)):
        for seed in range(seeds):
            yield task, draw_layout(Episode(0, task, 1000 + seed, split=split), randomise)


def combination(layout: Layout) -> tuple[str, str, str]:
    """Family, kind and colour of what the instruction names."""
    if layout.family == "press":
        return "press", "button", layout.fixture_colours[layout.goal]
    return layout.family, KINDS[layout.target], layout.object_colours[layout.target]


def same(first: Layout, second: Layout) -> bool:
    return repr(first) == repr(second)


def test_a_scene_is_a_function_of_task_seed_and_split() -> None:
    assert same(draw_layout(Episode(3, 2, 77)), draw_layout(Episode(9, 2, 77, group=4)))
    assert not same(draw_layout(Episode(3, 2, 77)), draw_layout(Episode(3, 2, 78)))
    assert not same(draw_layout(Episode(3, 2, 77)), draw_layout(Episode(3, 3, 77)))


def test_nothing_overlaps() -> None:
    """Objects are at most 5.4 cm across (diagonal), fixtures at most 15.6 cm (a zone's diagonal)."""
    for _, layout in layouts():
        fixtures = layout.fixtures[np.isfinite(layout.fixtures[:, 0])]
        points = np.concatenate([layout.objects, fixtures])
        distance = np.linalg.norm(points[:, None] - points[None], axis=-1) + 9 * np.eye(len(points))
        objects = len(KINDS)
        assert len(fixtures) == 2
        assert distance[:objects, :objects].min() >= 0.08
        assert distance[:objects, objects:].min() >= 0.10
        assert distance[objects:, objects:].min() >= 0.12


def test_a_push_has_a_clear_way_of_ten_to_twenty_centimetres() -> None:
    for _, layout in layouts():
        if layout.family == "push":
            start, goal = layout.objects[layout.target], layout.fixtures[layout.goal]
            assert 0.10 < np.linalg.norm(goal - start) < 0.20
            along = np.linspace(0, 1, 50)[:, None]
            others = np.delete(layout.objects, layout.target, axis=0)
            assert np.linalg.norm((start + along * (goal - start))[:, None] - others, axis=-1).min() >= 0.07


def test_an_instruction_names_one_thing() -> None:
    """No two things on the table share a colour, and all words are known."""
    for task, layout in layouts():
        colours = [colour for colour in (*layout.object_colours, *layout.fixture_colours) if colour]
        assert len(set(colours)) == len(colours)
        words = layout.instruction.split()
        assert set(words) <= set(WORDS)
        family, kind, colour = combination(layout)
        assert family == TASKS[task].family
        assert {kind, colour} <= set(words)
        if TASKS[task].name in ("put_on_plate", "put_in_bowl"):
            assert words[-1] == FIXTURES[layout.goal]
        if layout.family == "push":
            assert layout.fixture_colours[layout.goal] in words


@pytest.mark.thorough
def test_training_shows_every_colour_and_kind_of_every_family() -> None:
    seen = {combination(layout) for _, layout in layouts()}
    assert {family for family, _, _ in seen} == set(FAMILIES)
    for family in FAMILIES:
        kinds = {"button"} if family == "press" else set(KINDS)
        assert {kind for f, kind, _ in seen if f == family} == kinds
    for kind in set(KINDS):
        assert {colour for _, k, colour in seen if k == kind} == set(COLOURS)
    named = {word for _, layout in layouts() for word in layout.instruction.split()}
    assert named == set(WORDS)


@pytest.mark.thorough
def test_semantic_combinations_never_occur_in_training() -> None:
    trained = {combination(layout) for split in ("train", "vision", "execution") for _, layout in layouts(split)}
    held_out = {combination(layout) for _, layout in layouts("semantic")}
    assert not trained & held_out
    assert {family for family, _, _ in held_out} == set(FAMILIES)


@pytest.mark.thorough
def test_vision_shows_other_patterns_light_and_colours_from_another_place() -> None:
    trained, held_out = ([layout.look for _, layout in layouts(split)] for split in ("train", "vision"))
    assert not {look.pattern for look in trained} & {look.pattern for look in held_out}
    assert all(not look.camera_shift.any() and not look.camera_turn.any() for look in trained)
    assert all(look.camera_shift.all() and look.camera_turn.all() for look in held_out)
    assert max(look.strength for look in trained) < min(np.quantile([look.strength for look in held_out], 0.2), 0.15)
    for value in (lambda look: look.ambient, lambda look: look.light[0], lambda look: look.colours["red"][0]):
        assert np.ptp([value(look) for look in held_out]) > 1.2 * np.ptp([value(look) for look in trained])


@pytest.mark.thorough
def test_execution_starts_elsewhere_and_displaces_the_target_once() -> None:
    trained, held_out = ([layout for _, layout in layouts(split)] for split in ("train", "execution"))
    assert all(layout.displacement is None for layout in trained)
    for layout in held_out:
        assert layout.displacement is not None
        step, shift = layout.displacement
        assert 5 <= step < 15
        assert 0.02 <= np.linalg.norm(shift) <= 0.04
    spread = np.abs([layout.start - START for layout in trained]).max(axis=0)
    outside = (np.abs([layout.start - START for layout in held_out]) > spread).any(axis=1)
    assert outside.mean() > 0.9
    others = {"train", *SPLITS} - {"execution"}
    assert all(layout.displacement is None for split in others for _, layout in layouts(split, seeds=5))


@pytest.mark.parametrize("split", SPLITS)
def test_splits_change_nothing_else(split) -> None:
    """Held-out conditions come on top: objects lie where training puts them (colours decide what else is drawn)."""
    for (_, trained), (_, held_out) in zip(layouts(seeds=5), layouts(split, seeds=5), strict=True):
        assert (trained.family, trained.target, trained.goal) == (held_out.family, held_out.target, held_out.goal)
        if split != "semantic":
            np.testing.assert_array_equal(trained.objects, held_out.objects)
            assert trained.instruction == held_out.instruction


def test_without_randomisation_all_looks_are_one() -> None:
    looks = [layout.look for _, layout in layouts(seeds=5, randomise=False)]
    for name in ("table", "light", "ambient", "pattern", "colours"):
        assert len({repr(getattr(look, name)) for look in looks}) == 1
    assert len({repr(layout.look.light) for _, layout in layouts(seeds=5)}) == 5 * len(TASKS)
