"""The package's files, read without importing it."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero import package
from tests.support.libero import Run

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def test_initial_states_are_what_torch_reads(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(5, 7))
    torch.save(states, tmp_path / "task.pruned_init")
    assert np.array_equal(package.read_initial_states(tmp_path / "task.pruned_init"), states)


class Hostile:
    def __reduce__(self) -> object:
        return print, ("a file of initial states has run code",)


def test_initial_states_that_would_run_code_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(Hostile(), tmp_path / "task.pruned_init")
    with pytest.raises(pickle.UnpicklingError, match="print; only a NumPy array"):
        package.read_initial_states(tmp_path / "task.pruned_init")
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("pick_up_the_milk_and_place_it_in_the_basket", "pick up the milk and place it in the basket"),
        ("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet", "close the top drawer of the cabinet"),
        ("STUDY_SCENE1_pick_up_the_book", "pick up the book"),
    ],
)
def test_an_instruction_is_the_task_s_name(task: str, words: str) -> None:
    assert package.make_instruction(task) == words


def test_objects_of_interest(tmp_path: Path) -> None:
    (tmp_path / "a.bddl").write_text("(:objects a_1 - a)\n (:obj_of_interest\n  a_1\n  b_1_top_region\n )\n (:goal)")
    assert package.read_objects_of_interest(tmp_path / "a.bddl") == ("a_1", "b_1_top_region")


@pytest.fixture(scope="module")
def loaded(run: Run, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Array]]:
    """Of the package itself, loaded where the user's folder is empty."""
    home = tmp_path_factory.mktemp("home")
    return run(("configured", {"assets": assets, "home": home}), ("benchmark", {"assets": assets}))


@pytest.mark.sim
def test_loading_leaves_nothing_behind(loaded: list[dict[str, Array]]) -> None:
    assert not loaded[0]["variable"]
    assert not [name for name in loaded[0]["left"] if ".libero" in name], "a configuration in the user's folder"


@pytest.mark.sim
def test_tasks_are_the_benchmark_s_in_its_order(loaded: list[dict[str, Array]]) -> None:
    found = loaded[1]
    for suite in SUITES:
        assert np.array_equal(found[f"{suite}_ours"], found[f"{suite}_theirs"]), suite
        assert len(found[f"{suite}_ours"]) == (90 if suite == "libero_90" else 10)
