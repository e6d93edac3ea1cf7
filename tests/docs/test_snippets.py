"""Every Python, YAML and TOML snippet of README, CONTRIBUTING and docs is run: here, or as the tables below say."""

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.config.option_files import find_config_folder
from embodied_rl.datasets.lerobot.info import make_features
from embodied_rl.deployment.execution.executor import Hold
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest
from embodied_rl.deployment.execution.return_points import ReturnPoint, ReturnPoints, save_return_points
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.recording.recording_folder import read_description
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support import running
from tests.support.collecting import CONFIG, SPEC, N, half_skilled, inline
from tests.support.control_loop import ControlLoop, make_policy
from tests.support.pages import REPOSITORY, list_pages
from tests.support.policy_serving import DEADLINE, make_observation, running_policy
from tests.support.policy_serving import SPEC as SERVED
from tests.support.transports import JOINTS, LONG_S, borrow_domain

PAGES = {name: REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")} | list_pages()
SNIPPET = re.compile(r"^```(?:python|yaml|toml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OTHER_LANGUAGES = {"", "bash", "console", "{eval-rst}", "{toctree}"}
"""Commands, which test_commands.py reads, what they print, and the site's own."""
EXAMPLE = "docs/example_plugin/src/embodied_rl_example"
EXCERPTS = {  # parts of a file that other tests run, with … lines between the parts
    "CONTRIBUTING.md 1": f"{EXAMPLE}/__init__.py",
    "CONTRIBUTING.md 2": "docs/example_plugin/pyproject.toml",
    "CONTRIBUTING.md 3": f"{EXAMPLE}/conf/sim/reacher.yaml",
    "CONTRIBUTING.md 4": f"{EXAMPLE}/reacher.py",
    "CONTRIBUTING.md 5": f"{EXAMPLE}/reacher.py",
    "CONTRIBUTING.md 6": f"{EXAMPLE}/small_flow.py",
    "CONTRIBUTING.md 7": f"{EXAMPLE}/small_flow.py",
    "CONTRIBUTING.md 8": "docs/example_plugin/tests/test_contract.py",
    "CONTRIBUTING.md 9": f"{EXAMPLE}/conf/experiment/reacher_sft.yaml",
    "CONTRIBUTING.md 10": f"{EXAMPLE}/reinforce.py",
    "CONTRIBUTING.md 11": f"{EXAMPLE}/hardest.py",
    "CONTRIBUTING.md 12": "embodied_rl/runs/loggers/mlflow.py",
    "CONTRIBUTING.md 13": "embodied_rl/judge/scorers/scripted.py",
    "simulated_robot.md 1": "sims/embodied_rl_sims/tabletop/simulator.py",
}
RUN_ELSEWHERE = {  # the test that runs it
    "replay.md 2": "tests/rollout/replay/test_files.py",
    "robots.md 1": "tests/deployment/robots/test_templates.py",
}
NOT_RUN = {  # what it needs, in the words of its page
    "serving.md 2": "`pip install openpi-client typing_extensions`, in an environment with NumPy 1",
    "serving.md 3": "give the harness its address in the benchmark's configuration",
}
RUN: list[str] = []
"""Snippets that a test of this file runs; `snippet` adds them."""
SHORT = (*running.FILMED, "train.iterations=2", "train.eval_every=1", "sim.horizon=8", "plan=colocated", "plan.ranks=1")
"""Instead of a snippet's settings of training."""


def list_snippets() -> Iterator[tuple[str, str]]:
    """Name ("<page> <number in the page>") and text of each."""
    for name, page in PAGES.items():
        for number, text in enumerate(SNIPPET.findall(page.read_text(encoding="utf-8")), 1):
            yield f"{name} {number}", text


SNIPPETS = dict(list_snippets())
RUN_ELSEWHERE |= dict.fromkeys(
    (name for name in SNIPPETS if name.startswith("tutorial_")), "tests/docs/test_tutorials.py"
)


def snippet(name: str) -> pytest.MarkDecorator:
    """The test runs this snippet, which it gets as `text`."""
    RUN.append(name)
    return pytest.mark.parametrize("text", [SNIPPETS.get(name, "")], ids=[name])


def run(text: str, names: dict[str, Any], instead: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a snippet in these names, after replacements that must apply; return the names."""
    for old, new in (instead or {}).items():
        assert old in text, f"the snippet has no {old}"
        text = text.replace(old, new)
    exec(compile(text, "snippet", "exec"), names)
    return names


class Rounds:
    """True for so many rounds of a loop; calls `between` before each but the first."""

    def __init__(self, left: int, between: Callable[[], object] = lambda: None) -> None:
        self.left, self.between, self.begun = left, between, False

    def __bool__(self) -> bool:
        if self.begun:
            self.between()
        self.begun, self.left = True, self.left - 1
        return self.left >= 0


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A DDS domain of this test's own."""
    with borrow_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        yield


def test_every_snippet_is_in_one_table() -> None:
    known = [*RUN, *EXCERPTS, *RUN_ELSEWHERE, *NOT_RUN]
    new, gone = SNIPPETS.keys() - known, set(known) - SNIPPETS.keys()
    assert not new, f"no test runs {sorted(new)}"
    assert not gone, f"there is no {sorted(gone)}"
    assert len(set(known)) == len(known)
    opened = [re.findall(r"^ *```(\S*)", page.read_text(encoding="utf-8"), re.MULTILINE) for page in PAGES.values()]
    assert {language for page in opened for language in page} - OTHER_LANGUAGES == {"python", "yaml", "toml"}


@pytest.mark.parametrize("name", EXCERPTS)
def test_an_excerpt_is_what_its_file_has(name: str) -> None:
    """Each part between lines of `...`, in order."""
    source = (REPOSITORY / EXCERPTS[name]).read_text(encoding="utf-8")
    for part in re.split(r"^ *\.\.\.\n", SNIPPETS[name], flags=re.MULTILINE):
        _, found, source = source.partition(part.strip("\n"))
        assert found, f"{EXCERPTS[name]} has no\n{part}"


@pytest.mark.parametrize("name", RUN_ELSEWHERE)
def test_the_other_test_reads_the_page(name: str) -> None:
    assert name.split()[0] in (REPOSITORY / RUN_ELSEWHERE[name]).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NOT_RUN)
def test_the_page_says_what_a_snippet_needs(name: str) -> None:
    page = (REPOSITORY / "docs" / name.split()[0]).read_text(encoding="utf-8")
    assert NOT_RUN[name] in page.partition(SNIPPETS[name])[0][-300:]


@snippet("control.md 1")
def test_the_core_moves_a_robot(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    robot, published = ControlLoop(), list[np.ndarray]()

    def streams() -> Mapping[str, Any]:
        robot.observe()
        return robot.streams

    def move(command: np.ndarray) -> None:
        published.append(command)
        robot.place, step = command, robot.settings.period_s
        robot.now, robot.source_s = robot.now + step, robot.source_s + step

    clocks = SimpleNamespace(monotonic=lambda: robot.now, time_ns=lambda: int(robot.source_s * 1e9))
    monkeypatch.setitem(sys.modules, "time", clocks)
    names: dict[str, Any] = {
        "settings": robot.settings,
        "executor_settings": make_policy(robot.settings),
        "streams": streams,
        "measured": lambda: robot.measured,
        "running": Rounds(100),
        "what_the_operator_does": lambda: OperatorInput(wanted=Mode.RUN, deadman=robot.now),
        "ask": lambda request: names["core"].receive(robot.make_chunk(request)),
        "publish": move,
    }
    run(text, names)
    assert np.shape(published) == (100, 2) and (published[-1] > 0.1).all()


@snippet("delay.md 1")
def test_the_executor_plays_chunks_that_come_late(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, commands = list[tuple[int, ChunkRequest]](), []
    names: dict[str, Any] = {}

    def step() -> None:
        commands.append(names["command"])

    def receive() -> list[Chunk]:
        """The answer comes two steps after its request; action i of it is that of step i."""
        due = [request for sent, request in asked if sent == len(commands) - 2]
        steps = np.arange(10, dtype=np.float32)[:, None].repeat(2, axis=1)
        return [Chunk(each.sequence, each.epoch, each.step, 0.01 * (each.step + steps)) for each in due]

    monkeypatch.setitem(sys.modules, "time", SimpleNamespace(monotonic=lambda: len(commands) / 12.5))
    names |= {
        "low": np.full(2, -1, np.float32),
        "high": np.full(2, 1, np.float32),
        "largest_jump": np.full(2, 0.1, np.float32),
        "hold": Hold(np.zeros(2, np.float32), np.zeros(2, bool)),
        "running": Rounds(30, step),
        "send": lambda request, observation: asked.append((len(commands), request)),
        "observe": dict,
        "received": receive,
        "log": pytest.fail,
    }
    run(text, names)
    played = [command.action[0] for command in commands[2:]]
    assert np.allclose(played, 0.01 * np.arange(28)), "without a gap from the first answer on"


@snippet("human_in_the_loop.md 1")
def test_the_tabletop_takes_the_operator_s_device(text: str) -> None:
    (whole,) = (path.read_text() for path in find_config_folder().glob("robot/tabletop.yaml"))
    Path("robot.yaml").write_text(re.sub(r"^operator:\n(^[ ].*\n)*", lambda _: text, whole, flags=re.MULTILINE))
    device = load_robot(Path("robot.yaml")).operator.device
    assert device is not None and (device.deadman, device.store) == (4, 12)


@snippet("robots.md 2")
def test_a_robot_has_two_command_topics(text: str) -> None:
    before, _, after = SNIPPETS["robots.md 1"].partition("actions:")
    rest = "low: -1, high: 1, limits: {low: -1, high: 1, speed: 1, acceleration: 5, jerk: 100}"
    text = text.replace("…", f"unit: rad, kind: position, measured: elbow, {rest}", 1).replace("…", f"unit: m, {rest}")
    Path("robot.yaml").write_text(before + text + after[after.index("operator:") :])
    assert list(load_robot(Path("robot.yaml")).commands) == ["hand"]


@snippet("safety.md 1")
def test_the_filter_starts_slowly(text: str) -> None:
    made = run(text, {"measured": np.array([0.5]), "wanted": np.array([2.0])})["made"]
    assert 0.5 < made.command[0] <= 0.5 + 200 * 0.01**3 and "elbow" in made.why and not made.still


@pytest.mark.thorough
@snippet("human_in_the_loop.md 2")
def test_the_robot_returns_to_a_point(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    names = tuple(entry.name for entry in load_robot("tabletop").actions)
    points = (ReturnPoint("high", "", (0.5, 0.1, 0.2, None)),)
    save_return_points(ReturnPoints("tabletop", names, points), Path("points.json"))
    run(text, {})
    assert capsys.readouterr().out == "the return is done\n"


@pytest.mark.thorough
@snippet("datasets.md 1")
def test_a_dataset_is_written_and_read(text: str) -> None:
    random, features = np.random.default_rng(0), make_features(Tabletop.spec_of(TabletopConfig()))
    frames = [
        {name: random.integers(0, 2, each.shape).astype(np.dtype("u1" if each.is_image else each.dtype))
         for name, each in features.items()}
        for _ in range(12)
    ]  # fmt: skip
    names = run(text, {"frames": frames})
    assert names["samples"].actions.shape == (2, 8, 4)
    assert np.array_equal(names["samples"].actions[0], [frame["action"] for frame in frames[3:11]])
    assert len(names["batch"].actions) == 64


@snippet("replay.md 1")
def test_a_collector_fills_a_storage(text: str) -> None:
    (handle,) = inline(1)
    names = run(text, {"spec": SPEC, "actor": half_skilled(), "handle": handle})
    assert N == 8 and names["batch"].action.shape == (256, 4, 2)
    assert 1 <= len(names["episode"].action) <= -(-CONFIG.horizon // 4)


@snippet("python.md 2")
def test_a_loaded_policy_acts(text: str) -> None:
    actions = run(text, {"image": np.zeros((64, 64, 3), np.uint8), "state": np.zeros(7)})["actions"]
    assert actions.shape == (5, 4) and actions.dtype == np.float32


@snippet("serving.md 1")
def test_a_client_gets_actions(text: str) -> None:
    spec = replace(SERVED, cameras={"front": (4, 5)}, words=("pick", "up", "the", "red", "cube"), prompt_length=5)
    seen = make_observation(spec=spec)
    with running_policy(spec=spec) as served:
        instead = {"ws://127.0.0.1:8000": served.url, "deadline=0.5": f"deadline={DEADLINE}"}
        names = run(text, {"image": seen["images/front"], "state": seen["state"]}, instead)
        names["policy"].close()
    assert names["actions"].shape == (3, 2)


@snippet("simulators/tabletop.md 1")
def test_gymnasium_makes_the_tabletop(text: str) -> None:
    pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'embodied-rl[gymnasium]'")
    names = run(text, {})
    state, info = names["environment"].reset(seed=3)
    assert state.ndim == 1 and "press" in info["instruction"]
    assert names["environments"].reset(seed=3)[0]["image"].shape == (16, 64, 64, 3)
    names["environment"].close()
    names["environments"].close()


@pytest.mark.thorough
@snippet("ros2.md 1")
def test_a_node_hears_another(text: str, _loopback: None) -> None:
    ended = threading.Event()

    def talk() -> None:
        with open_transport("dds", node="robot") as node:
            states = node.create_publisher("/joint_states", JOINTS, "state")
            while not ended.wait(0.02):
                states.publish(node.messages.make(JOINTS, name=["elbow"], position=[0.25]))

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        names = run(text, {}, {"timeout_s=5": f"timeout_s={LONG_S}"})
    finally:
        ended.set()
        thread.join()
    assert names["states"].received > 0


@pytest.mark.thorough
@pytest.mark.process
@snippet("recording.md 1")
def test_a_recorder_runs_beside_a_program(text: str, _loopback: None, capsys: pytest.CaptureFixture[str]) -> None:
    alive = list[bool]()
    names: dict[str, Any] = {"run_the_robot": lambda: alive.append(names["recorder"].is_alive())}
    run(text, names)
    assert alive == [True] and re.search(r"^0 messages, .*\nno messages on .*/joint_states", capsys.readouterr().out)
    assert read_description(Path("recordings/monday"), Messages("jazzy")) == load_robot("tabletop")


@pytest.mark.thorough
@pytest.mark.process
@snippet("python.md 1")
def test_a_run_has_a_curve_and_films(text: str) -> None:
    names = run(text, {"SHORT": SHORT}, {'"train.iterations=40"': "*SHORT"})
    assert len(names["curve"]) == 2 and names["run"].films and names["run"].path.is_dir()


@pytest.mark.thorough
@pytest.mark.process
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((REPOSITORY / "docs/examples/demo.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    names = run(cells[0], {"SHORT": SHORT}, {'"train.iterations=40"': "*SHORT"})
    for cell in cells[1:]:
        run(cell, names)
    assert names["actions"].shape[1] == 4 and names["result"].steps[0] == len(names["actions"])
    assert re.search(r"^before: .* of 4 episodes\nafter: .* of 4 episodes$", capsys.readouterr().out, re.MULTILINE)
