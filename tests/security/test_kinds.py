"""Every kind of file that a stranger may send, and every command that opens it: nothing runs or leaves the folder.

What is refused is refused in one line that names the file; an exception that reaches the user is a defect.
"""

import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import building_checkpoints as building
from tests.support import strangers
from tests.support.planting import Plant
from tests.support.strangers import (
    DEEP,
    LONG,
    Json,
    changed,
    costs,
    plan,
    replaced,
    report,
    set_step,
    written,
)

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str]]
Kind = Callable[[Plant], Path]
Change = Callable[[Json], object]

CAMERAS = "policy.cameras={base_0_rgb: front, left_wrist_0_rgb: null, right_wrist_0_rgb: null}"
PI0 = ("policy=pi0", "policy.checkpoint={}", "sim=tabletop", "policy.vision_heads=2", CAMERAS)
COLOCATED = ("plan=colocated", "plan.ranks=1", "sim.num_envs=2")
COMMANDS = {
    "inspect": ("inspect", "{}"),
    "eval": ("eval", "policy={}", "--dry-run"),
    "play": ("play", "policy={}", "sim=tabletop", "--dry-run"),
    "serve": ("serve", "policy={}", "--dry-run"),
    "collect": ("collect", "policy={}", "sim=tabletop", "--dry-run"),
    "collect into": ("collect", "policy=random", "sim=tabletop", "episodes=1", "format=lerobot", "out={}"),
    "export": ("export", "checkpoint={}", "out=exported"),
    "import": ("import", *PI0, "out=imported.safetensors"),
    "train": ("train", "policy.checkpoint={}", "sim=tabletop", *COLOCATED, "--dry-run"),
    "train pi0": ("train", *PI0, *COLOCATED, "--dry-run"),
    "sft": ("sft", "policy.checkpoint={}", "sim=tabletop", "--dry-run"),
    "sft pi0": ("sft", *PI0, "algo=sft_vla", "--dry-run"),
    "resume": ("train", "resume={}", "--dry-run"),
    "compare": ("compare", "{}", "{}"),
    "trace": ("trace", "{}"),
    "costs": ("plan", "costs={}", "experiment=demo", "resources=2xcore"),
    "plan": ("train", "plan={}", "experiment=demo", "--dry-run"),
    "dataset": ("sft", "dataset={}", "algo=sft_vla", "sim=tabletop", "--dry-run"),
    "statistics": ("import", *PI0[:1], "policy.checkpoint=../sound", *PI0[2:], "policy.statistics={}"),
    "tokenizer": ("import", *PI0[:1], "policy.checkpoint=../sound", *PI0[2:], "policy.tokenizer={}"),
}
ACT = ("inspect", "eval", "play", "serve", "collect", "export", "train", "sft")
FOREIGN = ("inspect", "import", "train pi0", "sft pi0", "eval", "play", "serve", "collect", "export")
RUN = (*ACT, "resume", "compare", "trace")
DATASET = ("dataset", "collect into", "inspect")

REFUSED, ANYTHING = "refused", "opened or refused"
HLS = "#EXTM3U\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n"
EXTENSION = {"auto_map": {"AutoModel": "modeling_evil.Evil"}, "trust_remote_code": True}
COLOURED = "\x1b[31mevil"
REMOTE = {"architectures": ["Evil"], "model_type": "evil", **EXTENSION}
KINDS: dict[str, tuple[Kind, tuple[str, ...], str]] = {}


def kind(name: str, commands: Sequence[str], outcome: str = REFUSED) -> Callable[[Kind], Kind]:
    def add(make: Kind) -> Kind:
        assert name not in KINDS
        KINDS[name] = (make, tuple(commands), outcome)
        return make

    return add


# policy files


def policies(name: str, change: Change, commands: Sequence[str] = ACT, outcome: str = ANYTHING) -> None:
    kind(name, commands, outcome)(lambda plant: strangers.policy(plant.sent, change))


policies("policy: plug-in", lambda header: header.update(policy="evil:Evil"))
policies("policy: auto_map", lambda header: header["config"].update(EXTENSION))
policies("policy: sim", lambda header: header["extra"].update(sim={"name": "evil:S"}))
policies("policy: adapters", lambda header: header.update(adapters={"rank": "evil"}), outcome=REFUSED)
policies("policy: embodiment", lambda header: header["embodiment"].update(cameras=3), outcome=REFUSED)
policies("policy: lists", lambda header: header.update(config=[], extra="evil"), outcome=REFUSED)


@kind("policy: deep header", ACT)
def policy_with_deep_header(plant: Plant) -> Path:
    return strangers.policy_with_header(plant.sent, DEEP)


@kind("policy: files that leave the export", ("export", "inspect"))
def policy_with_files(plant: Plant) -> Path:
    files = {"../../outside/written.json": b"{}", f"{plant.outside}/absolute.json": b"{}"}
    return strangers.policy_of_pi0(plant.sent, lambda header: None, files)


@kind("policy: statistics that leave the export", ("export", "inspect"))
def policy_with_place(plant: Plant) -> Path:
    def change(header: Json) -> None:
        header["source"].update(format="openpi", where="../../outside/written.json")
        header["source"]["state"]["center"][0] += 1

    return strangers.policy_of_pi0(plant.sent, change, {})


def sources(name: str, change: Change, file: str = "config.json", content: bytes = b"{}") -> None:
    """A policy file whose export fails on the source that it says it was made from."""
    make = strangers.policy_of_pi0
    kind(f"policy: source's {name}", ("export",))(lambda plant: make(plant.sent, change, {file: content}))


NORMALISER = "policy_preprocessor_step_6_normalizer_processor.safetensors"
sources("configuration", lambda header: None, content=b"{")
sources("statistics", lambda header: header["source"]["action"]["center"].reverse(), NORMALISER, b"evil")
sources("names", lambda header: header["source"].update(names={"weight": "backbone.evil"}))
sources("types", lambda header: header["source"].update(dtypes={}))


@kind("policy: dtypes", ("export", "inspect"))
def policy_with_dtypes(plant: Plant) -> Path:
    def change(header: Json) -> None:
        header["source"]["dtypes"] = dict.fromkeys(header["source"]["dtypes"], "load")

    return strangers.policy_of_pi0(plant.sent, change, {})


# checkpoints of lerobot and openpi


def folders(name: str, file: str, change: Change | str, outcome: str = REFUSED, make: Kind = strangers.lerobot) -> None:
    """A folder of which one file has another content, or of which one JSON file is changed."""
    if isinstance(change, str):
        kind(name, FOREIGN, outcome)(lambda plant: replaced(make(plant), file, change))
    else:
        kind(name, FOREIGN, outcome)(lambda plant: changed(make(plant), file, change))


STEPS, WORDS = "policy_preprocessor.json", "tokenizer/tokenizer"
folders("lerobot: auto_map", "config.json", lambda config: config.update(EXTENSION))
folders("lerobot: class of a step", STEPS, lambda steps: steps["steps"].append({"class": "evil.Run"}))
folders("lerobot: deep steps", STEPS, DEEP)
folders("lerobot: deep config", "config.json", f'{{"input_features": {DEEP}}}')
folders("lerobot: long number", "config.json", f'{{"type": "pi0", "input_features": {LONG}}}')
folders("lerobot: tokenizer's program", f"{WORDS}_config.json", lambda told: told.update(EXTENSION), ANYTHING)
folders("lerobot: deep tokenizer", f"{WORDS}.json", DEEP, ANYTHING)
folders("openpi: auto_map", "config.json", lambda config: config.update(EXTENSION), ANYTHING, strangers.openpi)
folders("openpi: deep statistics", "assets/tiny/norm_stats.json", DEEP, make=strangers.openpi)
folders("openpi: deep config", "config.json", DEEP, make=strangers.openpi)
folders("transformers: remote code", "config.json", json.dumps(REMOTE), make=strangers.openpi)
kind("openpi: pickle beside", FOREIGN, ANYTHING)(lambda plant: strangers.openpi(plant, converted=False))


@kind("lerobot: statistics outside", FOREIGN)
def lerobot_statistics(plant: Plant) -> Path:
    folder = strangers.lerobot(plant)
    (file,) = folder.glob("policy_preprocessor_*.safetensors")
    file.rename(plant.outside / "sound.safetensors")
    step = set_step("normalizer_processor", state_file="../../outside/sound.safetensors")
    return changed(folder, STEPS, step)


@kind("lerobot: index outside", FOREIGN)
def lerobot_index(plant: Plant) -> Path:
    folder = strangers.lerobot(plant)
    building.shard(folder)
    moved = folder / "model-00002-of-00002.safetensors"
    moved.rename(plant.outside / moved.name)

    def point(content: Json) -> None:
        content["weight_map"] = {
            name: f"../../outside/{moved.name}" if file == moved.name else file
            for name, file in content["weight_map"].items()
        }

    return changed(folder, "model.safetensors.index.json", point)


@kind("lerobot: link outside", FOREIGN)
def lerobot_link(plant: Plant) -> Path:
    folder = strangers.lerobot(plant)
    (folder / "extra.json").symlink_to(plant.outside / "secret.json")
    return folder


# run folders


def runs(name: str, change: Change | None = None, file: str = "", content: str | bytes = "") -> None:
    """A run with a changed configuration, or of which one file has another content."""
    if change is not None:
        kind(name, RUN, ANYTHING)(lambda plant: strangers.run(plant.sent, change))
    else:
        kind(name, RUN, ANYTHING)(lambda plant: replaced(strangers.run(plant.sent), file, content))


SPANS = [{"began": "x", "total": [], "spans": [["a", 3, {}, "b", 1]]}]
METRICS = f'{DEEP}\n{{"iteration": {LONG}}}\n{{"iteration": 1, "eval/success": Infinity}}\n'
runs("run: simulator", lambda config: config["sim"].update(name="evil:S"))
runs("run: policy", lambda config: config["policy"].update(name="evil"))
runs("run: references", lambda config: config["sim"].update(image_size="${oc.env:SECRET}"))
runs("run: constructor", file="config.yaml", content="sim: !!python/object/apply:os.system ['touch executed']\n")
runs("run: broken YAML", file="config.yaml", content="sim: {\n  a: [1\n")
runs("run: overrides", file="overrides.txt", content=b"sim.python=evil\n\xff\xfe")
runs("run: provenance", file="provenance.json", content=DEEP)
runs("run: metrics", file="metrics.jsonl", content=METRICS)
runs("run: pointer", file="checkpoints/last", content="../../../../outside/00000001\n")
runs("run: state", file="checkpoints/00000001/state.json", content=DEEP)
runs("run: report", file="report.json", content=DEEP)
runs("run: deep timeline", file="timelines/00000001.json", content=DEEP)
runs("run: timeline", file="timelines/00000001.json", content=json.dumps(SPANS))
runs("run: timeline's name", file="timelines/evil.json", content="[]")


@kind("run: interpreter", RUN, ANYTHING)
def run_with_interpreter(plant: Plant) -> Path:
    return strangers.run(plant.sent, lambda config: config["sim"].update(python=str(plant.interpreter)))


@kind("run: links", RUN, ANYTHING)
def run_with_links(plant: Plant) -> Path:
    run = strangers.run(plant.sent)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(plant.outside / "new.jsonl")
    (run / "trace_00000001.json").symlink_to(plant.outside / "new.json")
    (run / "overrides.txt").symlink_to(plant.outside / "secret.json")
    return run


@kind("sweep folder", ("inspect", "eval", "resume", "compare", "trace"))
def sweep(plant: Plant) -> Path:
    folder = plant.sent / "sweeps" / "2026-01-01_00-00-00"
    return replaced(folder, "multirun.yaml", f"hydra: !!python/object/apply:os.system ['touch {plant.mark}']\n")


# single files


def files(command: str, name: str, content: object, outcome: str = REFUSED) -> None:
    """A file of JSON; its name is what stands before a colon."""
    kind(name, (command,), outcome)(lambda plant: written(plant.sent / name.partition(":")[0], content))


files("statistics", "norm_stats.json: deep", DEEP)
files("statistics", "norm_stats.json: types", {"norm_stats": {"state": {"mean": "evil", "std": [{}]}}})
files("statistics", "stats.json: types", {"observation.state": {"mean": "evil"}, "action": 3})
files("tokenizer", "tokenizer.json: types", {"model": "evil"})
files("compare", "report.json: deep", DEEP)
files("compare", "report.json: long number", f'{{"steps": {LONG}}}')
files("compare", "report.json: rate", report(success={"rate": "<script>", "low": 0, "high": 1, "episodes": 2}))
files("compare", "report.json: rate beyond", report(success={"rate": 1e300, "low": 0, "high": 1, "episodes": 2}))
files("compare", "report.json: tasks", report(tasks={}), ANYTHING)
files("compare", "report.json: episodes", report(episodes=[3]))
files("compare", "report.json: simulators", report(metadata={"split": ["x"], "simulators": "evil"}), ANYTHING)
files("compare", "report.json: half a letter", report(metadata={"split": "\ud800"}), ANYTHING)
files("compare", "report.json: metadata", report(metadata=3))
files("costs", "costs.json: deep", DEEP)
files("costs", "costs.json: types", costs(step={"fixed": "evil"}))
files("costs", "costs.json: infinite", costs(step={"fixed": float("nan"), "per_item": -1}))
files("costs", "costs.json: about", costs() | {"about": "evil", "spread": 3})
files("costs", "costs.json: colour", costs() | {"about": {"cores": 1, "cpu": COLOURED}}, ANYTHING)
files("plan", "plan.json: deep", DEEP)
files("plan", "plan.json: reference", plan(ranks="${oc.env:SECRET}"))
files("plan", "plan.json: order", plan(workers=1, order="${oc.env:SECRET}"))


@kind("tokenizer.json: pickle", ("tokenizer",))
def tokenizer(plant: Plant) -> Path:
    return replaced(plant.sent, "tokenizer.json", pickle.dumps(plant)) / "tokenizer.json"


@kind("plan.json: mode that is a file", ("plan",))
def plan_with_file(plant: Plant) -> Path:
    """A configuration of the stranger's beside it, which sets what runs."""
    written(plant.sent / "evil.yaml", f"# @package _global_\nsim:\n  python: {plant.interpreter}\n")
    place = os.path.relpath(plant.sent / "evil", Path(__file__).parents[2] / "configs" / "plan")
    return written(plant.sent / "plan.json", plan(mode=place))


# datasets


def infos(name: str, change: Change) -> None:
    kind(f"dataset: {name}", DATASET)(lambda plant: strangers.dataset(plant, change))


def datasets(name: str, make: Kind, outcome: str = REFUSED) -> None:
    kind(f"dataset: {name}", ("dataset",), outcome)(make)


def set_dtype(info: Json) -> None:
    info["features"]["action"]["dtype"] = "i4,(evil)"


PARQUET, FILM = "chunk-000/file-000.parquet", "videos/observation.images.front/chunk-000/file-000.mp4"
infos("path upwards", lambda info: info.update(data_path=f"../../outside/data/{info['data_path']}"))
infos("video upwards", lambda info: info.update(video_path=f"../../outside/data/{info['video_path']}"))
infos("absolute path", lambda info: info.update(data_path=f"/etc/{info['data_path']}"))
infos("attribute", lambda info: info.update(data_path="{chunk_index.__class__.__mro__}"))
infos("attribute of a video", lambda info: info.update(video_path="{video_key.__class__}/{chunk_index}"))
infos("item", lambda info: info.update(video_path="{video_key[0]}"))
infos("conversion", lambda info: info.update(video_path="{video_key!r}"))
infos("wide number", lambda info: info.update(data_path="{chunk_index:099999d}"))
infos("field in a form", lambda info: info.update(data_path="{chunk_index:{file_index}}"))
infos("other field", lambda info: info.update(data_path="{evil}"))
infos("no pattern", lambda info: info.update(data_path="{chunk_index"))
infos("number for a path", lambda info: info.update(data_path=3))
infos("feature's name", lambda info: info["features"].update({"../../../outside": info["features"]["action"]}))
infos("feature's shape", lambda info: info["features"]["action"].update(shape=["evil"]))
infos("types", lambda info: info.update(fps="evil", total_frames=None))
kind("dataset: deep info", DATASET)(lambda plant: replaced(strangers.dataset(plant), "meta/info.json", DEEP))
datasets("feature's type", lambda p: strangers.dataset(p, set_dtype), ANYTHING)
datasets("deep statistics", lambda plant: replaced(strangers.dataset(plant), "meta/stats.json", DEEP))
datasets("link of a table", lambda plant: strangers.linked(plant, f"data/{PARQUET}"))
datasets("link of a list", lambda plant: strangers.linked(plant, f"meta/episodes/{PARQUET}"))
datasets("link of a video", lambda plant: strangers.linked(plant, FILM))
datasets("link of a folder", lambda plant: strangers.linked(plant, "data"))
datasets("pickled columns", strangers.pickled_columns, ANYTHING)
datasets("playlist", lambda p: strangers.playlist(p, HLS.format(f"file://{p.outside}/data/{FILM}")))
datasets("playlist of a network", lambda p: strangers.playlist(p, HLS.format("http://127.0.0.1:9/x.ts")))
datasets("list of files", lambda p: strangers.playlist(p, f"ffconcat version 1.0\nfile '{p.outside}/data/{FILM}'\n"))

PAIRS = [(name, command) for name, (_, commands, _) in KINDS.items() for command in commands]


@pytest.mark.parametrize(("name", "command"), PAIRS, ids=[f"{name} × {command}" for name, command in PAIRS])
def test_what_a_stranger_sends(
    plant: Plant, typed: Typed, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    make, _, outcome = KINDS[name]
    target = make(plant)
    if "../sound" in " ".join(COMMANDS[command]):
        building.lerobot(plant.sent.parent / "sound", "pi0")
    plant.watch()
    fault = find_fault(plant, target, lambda: typed(*(word.replace("{}", str(target)) for word in COMMANDS[command])))
    if fault == "opened":
        assert outcome == ANYTHING, "opened, and has to be refused"
    elif fault:
        pytest.fail(fault, pytrace=False)


def find_fault(plant: Plant, target: Path, run: Callable[[], tuple[int, str]]) -> str:
    """Return what is wrong with how a command fared; "opened" where it ended well, nothing where it refused well."""
    try:
        code, said = run()
    except Exception as error:  # noqa: BLE001  the user would see a traceback
        harm = plant.find_harm()
        return f"harm: {harm}" if harm else f"traceback: {type(error).__name__}: {error!s:.300}"
    if harm := plant.find_harm():
        return f"harm: {harm}"
    if "hunter2" in said or "Traceback" in said or "\x1b" in said:
        return f"told: {said}"
    if code == 0:
        return "opened"
    refusals = [line for line in said.splitlines() if line.startswith("embodied-rl: ")]
    if code != 2 or len(refusals) != 1 or not said.rstrip().endswith(refusals[0]):
        return f"form: {code}: {said}"
    return "" if target.name in refusals[0] or str(plant.sent) in refusals[0] else f"form: no file is named: {said}"
