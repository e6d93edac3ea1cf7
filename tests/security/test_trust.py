"""What a file may decide: each restricted key of each command and plug-in, in each kind of file that holds settings."""

import json
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.assembly.build import find_sizes, load_backbone
from embodied_rl.assembly.evaluated_policies import find_simulator
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.run_command import import_name
from embodied_rl.commands.eval import read_resumed
from embodied_rl.commands.preparation import compose_config
from embodied_rl.commands.train import read_run_to_resume
from embodied_rl.config import assets, plugins
from embodied_rl.config import freeze as configuration
from embodied_rl.evaluate import resumption
from embodied_rl.evaluate.benchmark import make_parts
from embodied_rl.evaluate.resumption import FILE as EVALUATION
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text, Trust
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import (
    AlgoNode,
    BenchmarkNode,
    BenchmarkPart,
    CurriculumNode,
    EvalConfig,
    LoggerNode,
    Plan,
    PolicyNode,
    RewardNode,
    RunConfig,
    ServedNode,
    SimChange,
    SimNode,
    TrainConfig,
    TrainLoop,
)
from embodied_rl.schema.untrusted_settings import (
    Setting,
    check_file,
    format_override,
    format_resume,
    freeze_file,
    list_settings,
)
from embodied_rl.training.extension import describe_resume
from embodied_rl.training.planner.allocation import Allocation
from tests.support.planting import Plant
from tests.support.strangers import policy
from tests.support.strangers import run as strangers_run

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str]]
SECRET = "planted-secret-4711"
VARIABLE = "PLANTED_SECRET"
SHARED = ("embodied_rl_sims", "embodied_rl_policies", "embodied_rl.")
NODES: dict[str, type[Any]] = {
    "sims": SimNode, "policies": PolicyNode, "algorithms": AlgoNode, "curricula": CurriculumNode, "scorers": RewardNode,
    "loggers": LoggerNode,
}  # fmt: skip
NAMES = {
    "sims": "sim", "policies": "policy", "algorithms": "algo", "curricula": "curriculum", "scorers": "reward",
    "loggers": "logger",
}  # fmt: skip


class Listener:
    """A server on this machine that answers nothing, and knows whether somebody has connected."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"

    def has_visitors(self) -> bool:
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    made = Listener()
    monkeypatch.setenv(VARIABLE, SECRET)
    yield made
    made.close()


@cache
def list_plugins() -> list[tuple[str, str]]:
    """Kind and name of the plug-ins of this repository."""
    listed = [(kind, name, path) for kind in NODES for name, path in plugins.list_plugins(kind).items()]
    return [(kind, name) for kind, name, path in listed if path.startswith(SHARED)]


def list_restricted(kind: type[Any], said: dict[str, Any] | None = None, where: str = "") -> list[Setting]:
    return [each for each in list_settings(kind, said, where) if each.trust is not Trust.PLAIN]


# declarations


@pytest.mark.parametrize("name", sorted({command.schema for command in list_commands().values() if command.schema}))
def test_each_key_of_each_command_is_declared(name: str) -> None:
    assert [each.key for each in list_settings(import_name(name)) if each.trust is None] == []


@pytest.mark.parametrize(("kind", "name"), list_plugins())
def test_each_key_of_each_plugin_is_declared(kind: str, name: str) -> None:
    found = plugins.find_plugin(kind, name).Config
    assert [each.key for each in list_settings(found) if each.trust is None] == []


def test_a_stored_plan_is_words_and_numbers() -> None:
    assert {each.trust for each in list_settings(Allocation)} == {Trust.PLAIN}


@dataclass(frozen=True)
class Undeclared:
    free: str = ""
    anything: Any = None
    texts: tuple[str, ...] = ()
    either: int | str = 0
    keyed: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize("key", ["free", "anything", "texts", "either", "keyed"])
def test_free_text_without_a_declaration_counts_as_code(key: str, tmp_path: Path) -> None:
    value = {"texts": ["x"], "keyed": {"x": "y"}}.get(key, "x")
    with pytest.raises(UserError, match=f"{key} \\(code\\)"):
        freeze_file(Undeclared, {key: value}, tmp_path / "file", "")


# what each trust means


@dataclass(frozen=True)
class Declared:
    text: Text = ""
    path: FilePath | None = None
    paths: tuple[FilePath, ...] = ()
    address: Address = "localhost"
    secret: SecretName | None = None


@pytest.mark.parametrize(
    "said",
    [
        {"text": "/etc/passwd"}, {"path": "asset:tabletop_base.safetensors"}, {"path": "{}/inside"}, {"path": None},
        {"paths": ["{}/a", "{}/b/../c"]}, {"address": "localhost"}, {"secret": None},
    ],
)  # fmt: skip
def test_what_a_file_may_say(tmp_path: Path, said: dict[str, Any]) -> None:
    filled = json.loads(json.dumps(said).replace("{}", str(tmp_path)))
    check_file(Declared, filled, "a file", folder=tmp_path)


@pytest.mark.parametrize(
    "said",
    [
        {"path": "/etc/passwd"}, {"path": "{}/../outside"}, {"path": "{}/link/file"}, {"path": "~/file"},
        {"path": "relative"}, {"path": "http://evil/x"}, {"path": "{}/nul\0"}, {"path": "{}/loop"},
        {"paths": ["{}/a", "/etc/passwd"]}, {"path": 3}, {"address": "evil"}, {"secret": "HOME"},
    ],
)  # fmt: skip
def test_what_a_file_may_not_say(tmp_path: Path, said: dict[str, Any]) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "link").symlink_to(tmp_path)
    (home / "loop").symlink_to(home / "loop")
    filled = json.loads(json.dumps(said).replace("{}", str(home)))
    with pytest.raises(UserError, match=f"a file sets {next(iter(said))} ") as refused:
        check_file(Declared, filled, "a file", folder=home)
    assert str(refused.value).isprintable()
    check_file(Declared, filled, "a file", folder=home, typed=list(said))


def test_a_path_is_no_address_although_a_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws:" / "evil").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="path"):
        check_file(Declared, {"path": "ws://evil"}, "a file", folder=tmp_path)


@pytest.mark.parametrize("name", ["../pyproject.toml", "/etc/passwd", "a/../../pyproject.toml"])
def test_an_asset_lies_among_the_assets(name: str) -> None:
    with pytest.raises(UserError, match="asset"):
        assets.find_asset(name)


# each key in each file


def choose_value(setting: Setting, plant: Plant, listener: Listener) -> Any:
    """A value that shows if it is used, in the form that the key takes."""
    text = {
        Trust.PATH: str(plant.outside / "secret.json"),
        Trust.ADDRESS: f"http://{listener.address}/v1",
        Trust.SECRET_NAME: VARIABLE,
        Trust.CODE: str(plant.interpreter),
    }[setting.trust or Trust.CODE]
    if isinstance(setting.default, bool):
        return not setting.default
    if setting.key == "logger.name":
        return "wandb"  # others are unknown
    if isinstance(setting.default, dict):
        return {"key": text}
    return [text] if isinstance(setting.default, list) else text


def make_node(kind: str, name: str) -> dict[str, Any]:
    """The plain keys of a node; those without a default are left out."""
    made = list_settings(NODES[kind], {"name": name})
    return {"name": name, **{each.key: each.default for each in made if each.key != "name" and "." not in each.key}}


def list_keys_of_runs() -> list[tuple[str, str, str]]:
    """Kind and name of a plug-in, or two empty texts, and each key that a run's configuration may hold then."""
    usual = TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("ppo"))
    unread = ("run.root", "reward.examined", "resume")
    listed = [("", "", each.key) for each in list_restricted(TrainConfig, configuration.thaw_config(usual))]
    for kind, name in list_plugins():
        own = list_restricted(plugins.find_plugin(kind, name).Config, None, NAMES[kind])
        listed += [(kind, name, each.key) for each in own]
    return [each for each in listed if each[2] not in unread]


def list_keys_of_sims() -> list[tuple[str, str]]:
    return [
        (name, each.key.partition(".")[2])
        for kind, name in list_plugins() if kind == "sims"
        for each in list_restricted(SimNode, {"name": name}, "sim")
    ]  # fmt: skip


def write_run(folder: Path, **changes: Any) -> Path:
    """A run that was killed before its first checkpoint."""
    for name in ("checkpoints", "videos", "eval"):
        (folder / name).mkdir(parents=True)
    loop = TrainLoop(1, 2, film=False, eval_every=0, final_episodes=1)
    usual: dict[str, Any] = {"plan": Plan(ranks=1), "train": loop, **changes}
    config = TrainConfig(SimNode("tabletop", num_envs=2), PolicyNode("pocket"), AlgoNode("ppo"), **usual)
    (folder / "config.yaml").write_text(json.dumps(configuration.thaw_config(config)))
    return folder


def change_run(run: Path, key: str, value: Any, **nodes: dict[str, Any]) -> None:
    said = json.loads((run / "config.yaml").read_text()) | nodes
    place, *below = key.split(".")
    if below:
        said[place][".".join(below)] = value
    else:
        said[place] = value
    (run / "config.yaml").write_text(json.dumps(said))


def type_resume(run: Path) -> TrainConfig:
    return TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("ppo"), resume=str(run))


def check_refused(plant: Plant, listener: Listener, key: str, act: Callable[[], object]) -> None:
    """Check that something is refused by the name of a key, and that nothing ran, was asked or was opened."""
    plant.watch(reads=True)
    with pytest.raises(UserError) as refused:
        act()
    assert plant.find_harm() == [] and not listener.has_visitors()
    said = str(refused.value)
    assert (
        re.search(rf" sets (.* )?{re.escape(key)} \(", said) and f"{key}=" in said.rpartition("type it yourself: ")[2]
    ), said
    assert SECRET not in said and "hunter2" not in said and "\n" not in said


@pytest.mark.parametrize(("kind", "name", "key"), list_keys_of_runs())
def test_a_run_folder(plant: Plant, listener: Listener, kind: str, name: str, key: str) -> None:
    run = write_run(plant.sent / "run")
    node = {NAMES[kind]: make_node(kind, name)} if kind else {}
    said = json.loads((run / "config.yaml").read_text()) | node
    setting = next(each for each in list_restricted(TrainConfig, said) if each.key == key)
    value = choose_value(setting, plant, listener)
    change_run(run, key, value, **node)
    check_refused(plant, listener, key, lambda: read_run_to_resume(type_resume(run)))


@pytest.mark.parametrize(("name", "key"), list_keys_of_sims())
@pytest.mark.parametrize("source", ["run", "policy", "benchmark", "evaluation"])
def test_a_simulator_in_a_file(plant: Plant, listener: Listener, source: str, name: str, key: str) -> None:
    (setting,) = [each for each in list_restricted(SimNode, {"name": name}) if each.key == key]
    node = {"name": name, key: choose_value(setting, plant, listener)}
    if source == "run":
        run = write_run(plant.sent / "run")
        change_run(run, "sim", node)
        act = lambda: find_simulator(policy(run), RunFolder(run), SimChange())  # noqa: E731
    elif source == "policy":
        file = policy(plant.sent, lambda header: header["extra"].update(sim=node))
        act = lambda: find_simulator(file, None, SimChange())  # noqa: E731
    elif source == "benchmark":
        benchmark = BenchmarkNode("evil", "none", (BenchmarkPart(node),))
        act = lambda: make_parts(EvalConfig(policy="random", benchmark=benchmark), None)  # noqa: E731
    else:
        own = {item: value for item, value in node.items() if item != "name"}
        config = EvalConfig(policy="random", sim=SimChange(name, own))
        folder = write_evaluation(plant.sent / "evaluation", config)
        act = lambda: read_resumed(EvalConfig(resume=str(folder)), folder)  # noqa: E731
    check_refused(plant, listener, f"sim.{key}", act)


def write_evaluation(folder: Path, config: EvalConfig) -> Path:
    folder.mkdir()
    resumption.begin_evaluation(folder, config, {"policies": [{"policy": config.policy}]})
    return folder


@pytest.mark.parametrize("key", ["policy", "checkpoint", "policies", "server.token_variable"])
@pytest.mark.parametrize("form", ["address", "path"])
def test_a_folder_of_an_evaluation(plant: Plant, listener: Listener, key: str, form: str) -> None:
    who = f"ws://{listener.address}" if form == "address" else str(plant.outside / "secret.json")
    folder = write_evaluation(plant.sent / "evaluation", EvalConfig(policy="random", sim=SimChange("tabletop")))
    file = folder / EVALUATION
    content = json.loads(file.read_text())
    said = content["config"]
    if key.startswith("server."):
        said["server"]["token_variable"] = VARIABLE
    else:
        said |= {"policy": None, key: {"pick": who} if key == "policies" else who}
    file.write_text(json.dumps(content))
    check_refused(plant, listener, key, lambda: read_resumed(EvalConfig(resume=str(folder)), folder))


@pytest.mark.parametrize(
    "said", [{"policy": None}, {"policies": {"pick": "random"}}, {"policy": None, "policies": {"a": "random"}}]
)
def test_an_evaluation_that_nobody_runs(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = write_evaluation(tmp_path / "evaluation", EvalConfig(policy="random", sim=SimChange("tabletop")))
    content = json.loads((folder / EVALUATION).read_text())
    content["config"] |= said
    (folder / EVALUATION).write_text(json.dumps(content))
    with pytest.raises(UserError, match=EVALUATION):
        read_resumed(EvalConfig(resume=str(folder)), folder)


@pytest.mark.parametrize("load", [load_backbone, lambda file: find_sizes(PolicyNode("pocket", str(file)))])
def test_settings_of_a_network_in_a_policy_file(
    plant: Plant, listener: Listener, monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], object]
) -> None:
    """A policy of another package may have settings that are no sizes."""
    kind = plugins.find_plugin("policies", "pocket")
    monkeypatch.setattr(
        kind, "Config", make_dataclass("C", [("helper", Address, "")], bases=(kind.Config,), frozen=True)
    )
    file = policy(plant.sent, lambda header: header["config"].update(helper=f"http://{listener.address}"))
    check_refused(plant, listener, "policy.helper", lambda: load(file))


# what is typed


def test_what_is_typed_again_is_taken(plant: Plant, listener: Listener) -> None:
    reward = RewardNode("vlm", options={"url": f"http://{listener.address}/v1", "prompt": "progress_percent"})
    run = write_run(plant.sent / "run", reward=reward)
    typed = replace(
        type_resume(run),
        reward=RewardNode(options={"url": "http://127.0.0.1:9/v1"}),
        run=RunConfig(overrides=(f"resume={run}", "reward.url=http://127.0.0.1:9/v1")),
    )
    found, _ = read_run_to_resume(typed)
    assert found.reward.options["url"] == "http://127.0.0.1:9/v1" and found.reward.name == "vlm"
    assert found.reward.options["prompt"] == "progress_percent", "a name of ours is no path"


def test_the_user_s_own_configuration_counts(plant: Plant, listener: Listener) -> None:
    """As `--config-dir` composes it: nothing of it is typed."""
    options = {"url": f"http://{listener.address}/v1"}
    run = write_run(plant.sent / "run", reward=RewardNode("vlm", options=options))
    found, _ = read_run_to_resume(replace(type_resume(run), reward=RewardNode("vlm", options=options)))
    assert found.reward.options["url"] == options["url"]


def test_a_path_that_is_not_read_is_no_obstacle(plant: Plant, typed: Typed) -> None:
    """A run that has a checkpoint of its own does not open the one that it began with."""
    (plant.sent / "made").mkdir()
    run = strangers_run(
        plant.sent / "made", lambda config: config["policy"].update(checkpoint=str(plant.outside / "x"))
    )
    found, _ = read_run_to_resume(type_resume(run))
    assert found.policy.checkpoint is None
    (run / "checkpoints" / "00000001").rename(run / "moved")
    with pytest.raises(UserError, match=r"policy.checkpoint \(a path"):
        read_run_to_resume(type_resume(run))


@pytest.mark.parametrize("device", ["evil", "cpu:-1", ""])
def test_a_run_on_a_device_that_is_none(plant: Plant, typed: Typed, device: str) -> None:
    (plant.sent / "made").mkdir()
    run = strangers_run(plant.sent / "made", lambda config: config["policy"].update(device=device))
    code, said = typed("train", f"resume={run}", "--dry-run")
    assert code == 2 and f"policy.device={device} " in said, said


def test_what_continues_a_run_names_what_is_typed_again(plant: Plant) -> None:
    reward = RewardNode("vlm", options={"url": "http://127.0.0.1:9/v1", "key_variable": "MINE"})
    config = TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("ppo"), reward=reward)
    said = describe_resume(config, RunFolder(write_run(plant.sent / "run")))
    assert (
        said
        == f"embodied-rl train resume={plant.sent / 'run'} reward.url=http://127.0.0.1:9/v1 reward.key_variable=MINE"
    )


def test_what_is_typed_again_includes_what_was_typed(plant: Plant, typed: Typed) -> None:
    reward = RewardNode("vlm", options={"url": "http://127.0.0.1:9/v1", "key_variable": "MINE"})
    run = write_run(plant.sent / "my, run", reward=reward)
    code, said = typed(
        "train", f"resume='{run}'", "reward.url=http://127.0.0.1:9/v1", "train.iterations=3", "--dry-run"
    )
    remedy = said.strip().rpartition("type it yourself: ")[2]
    assert code == 2 and "train.iterations=3" in remedy, said
    assert typed("train", *shlex.split(remedy), "--dry-run")[0] == 0


@pytest.mark.parametrize("value", ["/home/jörg/my runs", "a, b", ["ä b"], {"a b": "ü, c"}])
def test_the_text_to_type_sets_the_value(value: Any) -> None:
    (typed,) = shlex.split(format_override("key", value))
    assert compose_config(None, [typed]) == {"key": value}


def test_what_continues_a_folder_can_be_typed() -> None:
    name = f"my rüns, x/{'long' * 60}"
    _, command, *typed = shlex.split(format_resume("train", Path(name), []))
    assert command == "train" and compose_config(None, typed) == {"resume": name}


def test_the_text_to_type_reads_no_variable_of_the_environment() -> None:
    assert "oc.env" not in format_override("reward.url", "http://evil/${oc.env:HOME}")


# whole commands


@pytest.mark.process
def test_a_resumed_run_sends_no_secret_anywhere(plant: Plant, typed: Typed, listener: Listener) -> None:
    url = f"http://{listener.address}/v1"
    reward = RewardNode("vlm", options={"url": url, "key_variable": VARIABLE}, timeout=0.1, on_down="abort")
    run = write_run(plant.sent / "run", reward=reward)
    code, said = typed("train", f"resume={run}")
    assert not listener.has_visitors()
    assert code == 2 and f"type it yourself: resume={run} " in said, said
    assert f"reward.url={url}" in said and f"reward.key_variable={VARIABLE}" in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "changed",
    [
        "experiment=demo",
        "sim=gymnasium",
        "reward.weight=1",
        "reward.urll=x",
        "policy.statistics=x",
        "seed=3",
        "sim.num_envs=4",
        "sim.horizon=3",
        "algo.lr=1",
    ],
)
def test_a_resumed_run_is_not_changed_otherwise(plant: Plant, typed: Typed, changed: str) -> None:
    (plant.sent / "made").mkdir()
    run = strangers_run(plant.sent / "made")
    code, said = typed("train", f"resume={run}", changed)
    assert code == 2 and f"{changed.partition('=')[0]} cannot be changed" in said, said


def test_an_evaluation_that_is_continued_sends_no_secret(plant: Plant, typed: Typed, listener: Listener) -> None:
    config = EvalConfig(policy=f"ws://{listener.address}", server=ServedNode(token_variable=VARIABLE))
    folder = write_evaluation(plant.sent / "evaluation", replace(config, sim=SimChange("tabletop")))
    code, said = typed("eval", f"resume={folder}")
    assert not listener.has_visitors() and SECRET not in said
    assert code == 2 and "server.token_variable (an environment variable)" in said, said
