"""Environments of simulators, made from wheels that lie in a folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from embodied_rl.commands import doctor
from embodied_rl.commands import sim as install
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.simulators import installation, python_environments
from embodied_rl.schema import EnvironmentConfig, SimNode
from tests.support.refusals import refuses

RECIPE = """
about: a simulator that weighs nothing
python: ">=3.10"
size: a few kB
steps:
  - [--no-index, --find-links, {wheels}, toysim==1.0]
imports: [toysim]
"""


def wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """The least that pip installs."""
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": f"__version__ = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the tabletop's recipe would be, if it needed one."""
    monkeypatch.setenv("EMBODIED_RL_ENVIRONMENTS", str(tmp_path / "made"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "toysim", "1.0", requires="numpy")
    wheel(wheels, "numpy", "9.0")
    file = tmp_path / "tabletop.yaml"
    file.write_text(RECIPE.format(wheels=wheels))
    for module in (python_environments, install, installation, doctor):
        monkeypatch.setattr(module, "find_recipe_file", lambda name: file)
    return file


def config(**keys) -> EnvironmentConfig:
    return EnvironmentConfig(("install", "tabletop"), **keys)


@pytest.mark.thorough
@pytest.mark.process
def test_an_environment_is_made_used_and_examined(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert python_environments.find_interpreter(SimNode("tabletop")) is None
    install.run(config())
    said = capsys.readouterr().out
    assert said.index("a few kB") < said.index("-m pip install") < said.index("Made:")
    made = python_environments.find_interpreter(SimNode("tabletop"))
    assert made is not None and made.python == str(
        python_environments.find_environment_folder("tabletop") / "bin" / "python"
    )
    code = "import toysim; print(toysim.__version__)"
    assert subprocess.run([made.python, "-c", code], capture_output=True, text=True, check=True).stdout == "1.0\n"
    mark = json.loads((python_environments.find_environment_folder("tabletop") / python_environments.MARK).read_text())
    assert {"toysim==1.0", "numpy==9.0"} <= set(mark["packages"])
    checks = {check.name: check for check in doctor.examine_simulator(SimNode("tabletop"))[:1]}
    assert checks["environment"].status == "ok"
    recipe.write_text(recipe.read_text() + "# other pins\n")
    (found,) = doctor.examine_simulator(SimNode("tabletop"))[:1]
    assert (found.status, found.remedy) == ("warn", "embodied-rl sim install tabletop replace=true")
    with refuses("output-exists", "replace=true"):
        install.run(config())
    install.run(config(keep=True))  # with the other pins, it is made anew
    assert install.is_current("tabletop")
    (python_environments.find_environment_folder("tabletop") / "kept").touch()
    install.run(config(keep=True))
    assert (python_environments.find_environment_folder("tabletop") / "kept").exists()


@pytest.mark.process
def test_a_failed_step_says_which_and_its_last_words() -> None:
    code = "import sys; print('no such wheel', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ValueError, match=r"exit code 3 of: .*sys\.exit\(3\)(.|\n)*no such wheel"):
        installation.execute_step([sys.executable, "-c", code])
    with pytest.raises(ValueError, match="EOFError"):  # nobody answers a step's questions
        installation.execute_step([sys.executable, "-c", "input('Proceed?')"])


@pytest.mark.process
def test_a_step_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "STEP_DEADLINE", 0.2)
    with pytest.raises(ValueError, match=r"no end after 0\.2 s: .*sleep"):
        installation.execute_step([sys.executable, "-c", "import time; time.sleep(60)"])


def test_what_a_failed_step_leaves_is_removed(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[list[str]] = []

    def execute(step: list[str]) -> None:
        Path(step[-1]).mkdir(parents=True) if "venv" in step else None
        done.append(step)
        if "install" in step:
            raise UserError("pip is out of order")

    monkeypatch.setattr(installation, "execute_step", execute)
    with pytest.raises(ValueError, match="out of order"):
        install.run(config())
    assert [step[2] for step in done] == ["venv", "pip"] and "toysim==1.0" in done[1]
    assert list_made() == []


def list_made() -> list[str]:
    """The environments that are there, whole or in part."""
    places = python_environments.find_environments_folder().iterdir()
    return sorted(place.name for place in places if place.name != ".tabletop.lock")


@pytest.mark.thorough
@pytest.mark.process
def test_what_works_stays_until_another_that_works_takes_its_place(recipe: Path) -> None:
    install.run(config())
    place = python_environments.find_environment_folder("tabletop")
    (place / "kept").touch()
    text = recipe.read_text()
    recipe.write_text(text.replace("imports: [toysim]", "imports: [nothing_of_the_kind]"))
    with pytest.raises(ValueError, match="nothing_of_the_kind"):
        install.run(config(replace=True))
    assert (place / "kept").exists() and python_environments.find_installed("tabletop") and list_made() == ["tabletop"]
    recipe.write_text(text)
    install.run(config(replace=True))
    assert not (place / "kept").exists() and list_made() == ["tabletop"]
    said = subprocess.run([place / "bin" / "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "toysim" in said, "a script looks for its interpreter where the environment was made"


def test_what_a_killed_one_had_moved_away_is_put_back(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed between the two renames; a later one fails."""
    place, beside = installation.find_folders("tabletop")
    (old := installation.backup_folder(beside)).mkdir(parents=True)
    (old / "kept").touch()
    beside.mkdir()
    monkeypatch.setattr(installation, "execute_step", lambda step: step[1])
    with pytest.raises(IndexError):
        installation.make_environment("tabletop", [["venv"]])
    assert (place / "kept").exists() and list_made() == ["tabletop"]


def test_two_at_once_do_not_meet(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "execute_step", lambda _: pytest.fail("it was begun"))
    with (
        installation.lock_environment("tabletop"),
        refuses("environment-locked", "tabletop"),
    ):
        install.run(config())
    with installation.lock_environment("tabletop"), installation.lock_environment("libero"):
        pass


@pytest.mark.thorough
@pytest.mark.process
def test_a_step_ends_with_who_began_it(tmp_path: Path) -> None:
    """Even with one that is killed: its children's children, too."""
    told = tmp_path / "told"
    os.mkfifo(told)
    inner = f"import os, time; file = open({str(told)!r}, 'w'); file.write('x'); file.flush(); time.sleep(600)"
    outer = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {inner!r}])"
    module = "embodied_rl.runtime.simulators.installation"
    code = f"import sys; from {module} import execute_step; execute_step([sys.executable, '-c', {outer!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    with told.open() as file:
        assert file.read(1) == "x"
        parent.kill()
        parent.wait()
        assert file.read() == "", "what the step's own child holds open ends with it"


@pytest.mark.parametrize("words", [{}, {"keep": True}, {"replace": True}], ids=str)
def test_a_folder_that_cannot_hold_environments_is_named(words, recipe: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "within", tmp_path / ("x" * 300)):
        monkeypatch.setenv("EMBODIED_RL_ENVIRONMENTS", str(folder))
        with refuses("folder-unusable", "EMBODIED_RL_ENVIRONMENTS=<folder>"):
            install.run(config(**words))
    with refuses("folder-unusable"):
        python_environments.find_installed("tabletop")


def test_a_dry_run_describes_an_environment_that_exists(recipe: Path) -> None:
    (place := python_environments.find_environment_folder("tabletop")).mkdir(parents=True)
    for name in (python_environments.MARK, "pyvenv.cfg"):
        (place / name).write_text("{}")
    rows = install.plan_installation(config())
    assert ("folder", str(place)) in rows and rows[-1][0] == "would" and "replace=true" in rows[-1][1]
    assert "in place of what is there" in dict(install.plan_installation(config(replace=True)))["would"]


def test_an_environment_without_its_mark_is_not_used(recipe: Path) -> None:
    python = python_environments.find_environment_folder("tabletop") / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    assert python_environments.find_installed("tabletop") is None


@pytest.mark.process
def test_what_stands_in_the_way_is_said_before_anything_is_made(recipe: Path, monkeypatch) -> None:
    monkeypatch.setattr(install, "make_environment", lambda *_: pytest.fail("it was made"))
    text = recipe.read_text()
    recipe.write_text(text.replace(">=3.10", "<3.9"))
    with refuses("python-version-unsupported", "tabletop", "<3.9"):
        install.run(config())
    recipe.write_text(text + "licence: the toy licence\n")
    with refuses("licence-not-accepted", "the toy licence", "accept_licence=true"):
        install.run(config())
    with refuses("interpreter-invalid", "python=/no/python"):
        install.run(config(python="/no/python"))


@pytest.mark.process
def test_where_this_python_does_not_suit_one_on_path_that_runs_is_taken(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.write_text(recipe.read_text().replace(">=3.10", "==3.99.*"))
    for folder, does in (("shims", "exit 127"), ("old", "echo 3.98.1"), ("own", "echo 3.99.1")):
        (file := tmp_path / folder / "python3.12").parent.mkdir()
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / each) for each in ("none", "shims", "old", "own")))
    taken, rows = str(tmp_path / "own" / "python3.12"), install.plan_installation(config())
    assert ("python", taken) in rows and any(text.startswith(f"{taken} -m venv") for _, text in rows)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    for given in ({}, {"python": sys.executable}, {"python": str(tmp_path / "old" / "python3.12")}):
        with refuses("python-version-unsupported", "tabletop", "python3.12"):
            install.run(config(**given))


@pytest.mark.parametrize("words", [(), ("install",), ("remove", "tabletop"), ("install", "a", "b")])
def test_other_words_are_answered_with_what_can_be_typed(words: tuple[str, ...], recipe: Path) -> None:
    with refuses("setting-invalid", "embodied-rl sim install", "tabletop"):
        install.run(EnvironmentConfig(words))


def test_a_name_may_be_begun_where_one_begins_so_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.plugins, "list_names", lambda group: ["isaaclab", "maniskill", "manipulate"])
    monkeypatch.setattr(install, "find_recipe_file", Path)
    monkeypatch.setattr(install, "read_recipe", lambda name: pytest.fail(name))
    with pytest.raises(pytest.fail.Exception, match="isaaclab"):
        install.check_recipe(EnvironmentConfig(("install", "isaac")))
    for word, nearest in (("mani", ""), ("", ""), ("manisklil", "'maniskill'")):
        with refuses("plugin-unknown", f"'{word}'", nearest):
            install.check_recipe(EnvironmentConfig(("install", word)))


def test_a_simulator_that_needs_no_environment_says_so() -> None:
    with refuses("recipe-missing", "'tabletop'"):
        install.run(config())


def test_a_folder_of_something_else_is_not_erased(recipe: Path) -> None:
    clone = python_environments.find_environment_folder("tabletop") / "README.md"
    clone.parent.mkdir(parents=True)
    clone.write_text("a clone")
    with refuses("environment-folder-occupied", "EMBODIED_RL_ENVIRONMENTS"):
        install.run(config(replace=True))
    assert clone.read_text() == "a clone"


def test_folders_to_import_from_need_an_interpreter(tmp_path: Path) -> None:
    with refuses("keys-contradict", "sim.pythonpath", "sim.python=<interpreter>"):
        python_environments.find_interpreter(SimNode("tabletop", pythonpath=(str(tmp_path),)))
    with refuses("folder-missing", "sim.pythonpath", "nowhere"):
        python_environments.find_interpreter(SimNode("tabletop", pythonpath=(str(tmp_path / "nowhere"),)))


def test_the_doctor_shows_everything_although_a_simulator_is_missing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EMBODIED_RL_ENVIRONMENTS", str(tmp_path))
    checks = doctor.examine_simulator(SimNode("maniskill"))
    assert [check.status for check in checks[:2]] == ["warn", "fail"]
    assert "sim install maniskill" in checks[1].remedy
