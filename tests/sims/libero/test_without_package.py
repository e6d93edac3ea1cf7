"""What needs no simulation: settings, the package's files, how it is loaded, initial states, and the pool of scenes."""

import os
import pickle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.libero import Libero, LiberoConfig, loading, package
from embodied_rl_sims.libero.environment import LiberoEnvironment
from embodied_rl_sims.rows import ScenePool
from tests.support.libero import Run
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "libero_100"}, "sim.suite=libero_100: it is one of libero_spatial"),
        ({"rendering": "fast"}, "sim.rendering=fast: it is one of official, light"),
        ({"renderer": "glfw"}, "sim.renderer=glfw: it is one of egl, osmesa"),
        ({"image_size": 0}, "sim.image_size=0: it must be at least 1"),
        ({"horizon": 0}, "sim.horizon=0"),
        ({"settle": -1}, "sim.settle=-1"),
        ({"keep": -1}, "sim.keep=-1"),
        ({"control_freq": 0}, "sim.control_freq=0"),
        ({"cameras": ("agentview", "agentview")}, "a camera is named twice"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LiberoConfig(**options)


@pytest.mark.parametrize(
    ("suite", "steps"),
    [("libero_spatial", 220), ("libero_object", 280), ("libero_goal", 300), ("libero_10", 520), ("libero_90", 400)],
)
def test_episodes_last_as_long_as_openpi_s(suite: Any, steps: int) -> None:
    assert LiberoConfig(suite=suite).episode_steps == steps
    assert LiberoConfig(suite=suite, horizon=7).episode_steps == 7


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


VARIABLE = "LIBERO_CONFIG_PATH"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """What the variable holds whenever the package is imported; the user's folder is empty."""
    found: list[str | None] = []
    monkeypatch.setattr(package, "find_benchmark_folder", lambda: tmp_path / "package")
    monkeypatch.setattr(
        loading, "import_module", lambda name: found.append(os.environ.get(VARIABLE)) or ModuleType(name)
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return found


def configuration(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("assets: elsewhere\n")
    return folder


def has_configuration(folder: str | None) -> bool:
    return folder is not None and (Path(folder) / "config.yaml").is_file()


def test_without_a_configuration_the_package_finds_one_and_the_variable_goes(seen: list[str | None]) -> None:
    loading._import_quietly()
    assert has_configuration(seen[0])
    assert VARIABLE not in os.environ


def test_the_user_s_own_configuration_is_used(seen: list[str | None], tmp_path: Path) -> None:
    configuration(tmp_path / "home" / ".libero")
    loading._import_quietly()
    assert seen == [None] and VARIABLE not in os.environ


@pytest.mark.parametrize("exists", [True, False])
def test_the_user_s_variable_is_as_before(
    seen: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    folder = tmp_path / "mine"
    if exists:
        configuration(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    loading._import_quietly()
    assert has_configuration(seen[0]) and (seen[0] == str(folder)) == exists
    assert os.environ[VARIABLE] == str(folder)


@pytest.mark.parametrize(
    ("visible", "device"), [("", "0"), ("GPU-3af2", "0"), ("1", None), ("0,1", None), (None, None)]
)
def test_pictures_are_drawn_on_the_first_device_where_robosuite_cannot_read_which(
    seen: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, device: str | None
) -> None:
    """Its EGL takes int() of CUDA_VISIBLE_DEVICES, which may be empty or name a GPU by its identifier."""
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "before")  # so that it is restored
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(loading, "set_renderer", lambda *_, **__: None)
    monkeypatch.setattr(loading, "_import_robosuite", lambda: None)
    loading.load_package("egl", tmp_path)
    assert os.environ.get("MUJOCO_EGL_DEVICE_ID") == device


def test_assets_are_where_the_user_s_configuration_says(seen: list[str | None], tmp_path: Path) -> None:
    downloaded, packaged, named = (
        tmp_path / "home/.cache/libero/assets",
        tmp_path / "package/assets",
        tmp_path / "named",
    )
    assert package.find_assets_folder(None) == downloaded, "none exists: where a download would bring them"
    downloaded.mkdir(parents=True)
    packaged.mkdir(parents=True)
    assert package.find_assets_folder(None) == packaged
    named.mkdir()
    (configuration(tmp_path / "home" / ".libero") / "config.yaml").write_text(f"assets: {named}\nbenchmark_root: x\n")
    assert package.find_assets_folder(None) == named
    assert package.find_assets_folder("/chosen") == Path("/chosen")


STATES = 10.0 + np.arange(50)[:, None]


class Room:
    """A scene whose goal holds from its third control step on."""

    def begin(self, seed: int, state: Array, split: str = "train") -> None:
        self.began, self.steps = (seed, float(state[0])), 0

    def step(self, action: Array) -> tuple[float, bool]:
        self.steps += 1
        return 0.5, self.steps >= 3


def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **options: Any) -> tuple[LiberoEnvironment, Room]:
    monkeypatch.setattr(package, "read_initial_states", lambda path: STATES)
    (tmp_path / "task.bddl").write_text("(:obj_of_interest a_1)")
    room, problem = Room(), package.Problem("task", "do it", tmp_path / "task.bddl", tmp_path / "none")
    scenes: Any = SimpleNamespace(take=lambda task: room)
    return LiberoEnvironment(scenes, (problem,), LiberoConfig(**options), slots=1), room


def test_a_number_is_that_initial_state_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject, room = environment(monkeypatch, tmp_path)
    for number in range(50):
        subject.begin(Episode(0, 0, 7, initial_state=number))
        assert room.began == (7, 10.0 + number)


@pytest.mark.parametrize("number", [-1, 50])
def test_another_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    subject, _ = environment(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=f"'task' has initial states 0 to 49, and no {number}"):
        subject.begin(Episode(0, 0, 7, initial_state=number))


def test_without_a_number_the_seed_draws_any_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject, room = environment(monkeypatch, tmp_path)
    drawn = {}
    for seed in [*range(600), 2**40]:
        subject.begin(Episode(0, 0, seed))
        drawn[seed] = room.began[1]
    assert set(drawn.values()) == set(STATES[:, 0])
    for seed in (599, 2**40, 0):
        subject.begin(Episode(9, 0, seed))
        assert room.began == (seed, drawn[seed]), "it follows from the seed alone"


@pytest.mark.parametrize(("ends", "terminated"), [(True, [False, False, True]), (False, [False, False, False])])
def test_success_ends_an_episode_if_it_is_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: bool, terminated: list[bool]
) -> None:
    subject, _ = environment(monkeypatch, tmp_path, terminate_on_success=ends)
    subject.begin(Episode(0, 0, 1, initial_state=0))
    outcomes = [subject.step(np.zeros(7, np.float32)) for _ in range(3)]
    assert [outcome.success for outcome in outcomes] == [False, False, True]
    assert [outcome.terminated for outcome in outcomes] == terminated


@pytest.mark.parametrize(
    ("suite", "faulty", "named"),
    [("libero_spatial", False, "sim.suite=libero_spatial"), ("libero_object", True, "operator=careful")],
)
def test_other_suites_and_faults_have_no_operator(suite: Any, faulty: bool, named: str) -> None:
    simulator: Any = SimpleNamespace(config=LiberoConfig(suite=suite))
    with refuses("operator-missing", named):
        Libero.expert(simulator, faulty)


class Built:
    def __init__(self, task: int) -> None:
        self.task, self.closed = task, False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


def scenes(keep: int) -> Any:
    return ScenePool(Built, keep)  # type: ignore[arg-type]


def test_a_waiting_scene_of_the_task_is_taken_and_never_twice() -> None:
    pool = scenes(keep=3)
    first, other = pool.take(1), pool.take(2)
    pool.give_back(1, first)
    pool.give_back(2, other)
    assert pool.take(1) is first
    assert pool.take(1) is not first and pool.take(2) is other


def test_of_too_many_the_one_that_waited_longest_is_closed() -> None:
    pool = scenes(keep=2)
    built = [pool.take(task) for task in range(3)]
    for task, scene in enumerate(built):
        pool.give_back(task, scene)
    assert [scene.closed for scene in built] == [True, False, False]
    assert pool.take(0) is not built[0]


def test_nothing_waits_where_nothing_is_to_be_kept() -> None:
    pool = scenes(keep=0)
    scene = pool.take(0)
    pool.give_back(0, scene)
    assert scene.closed


def test_closing_closes_what_waits() -> None:
    pool = scenes(keep=2)
    waiting, lent = pool.take(0), pool.take(1)
    pool.give_back(0, waiting)
    pool.close()
    assert waiting.closed and not lent.closed
