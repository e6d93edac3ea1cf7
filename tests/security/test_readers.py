"""Readers of a stranger's files one by one: whatever an entry is, and wherever a link leads."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from embodied_rl.actors.learning import shards
from embodied_rl.actors.learning.checkpoint import load_checkpoint
from embodied_rl.assembly.build import load_backbone, outline_backbone
from embodied_rl.checkpoints import detection
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.cli.main import main
from embodied_rl.commands.compare import read_entry, to_markdown, write_comparison
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.scorers.score_log import read_scores
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.rollout.timeline import read_timelines
from embodied_rl.runs.lock import hold_run
from embodied_rl.runs.metrics_file import MetricsWriter, read_metrics
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PolicyNode, SimNode, TrainConfig
from embodied_rl.schema.config_file import load_config
from embodied_rl.system.untrusted_files import check_inside, check_name, name_file, parse_json, shorten
from embodied_rl.training.planner.costs import CostFile
from embodied_rl.training.planner.stored import expand_stored_plan
from tests.support import building_checkpoints as building
from tests.support import making_datasets as datasets
from tests.support import strangers
from tests.support.planting import Plant
from tests.support.replaying import layout

pytestmark = pytest.mark.thorough
WRONG: tuple[Any, ...] = (None, True, -1, 1e308, "evil", "../../outside/x", [], ["evil"], {}, {"evil": 1})


def mutate(content: Any) -> Iterator[Any]:
    """Yield copies of a JSON value in which one entry, at any depth, has another value or is missing."""
    keys = (
        list(content) if isinstance(content, dict) else range(min(len(content), 2)) if isinstance(content, list) else ()
    )
    for key in keys:
        for value in WRONG:
            yield _with(content, key, value)
        if isinstance(content, dict):
            yield {name: value for name, value in content.items() if name != key}
        for inner in mutate(content[key]):
            yield _with(content, key, inner)


def _with(content: Any, key: Any, value: Any) -> Any:
    changed = content.copy()
    changed[key] = value
    return changed


Reader = tuple[Callable[[Plant], Path], str, Callable[[Path], object]]
READERS: dict[str, Reader] = {
    "config.json": (strangers.lerobot, "config.json", detection.read_checkpoint),
    "policy_preprocessor.json": (strangers.lerobot, "policy_preprocessor.json", detection.read_checkpoint),
    "policy_postprocessor.json": (strangers.lerobot, "policy_postprocessor.json", detection.read_checkpoint),
    "norm_stats.json": (strangers.openpi, "assets/tiny/norm_stats.json", detection.read_checkpoint),
    "meta/info.json": (strangers.dataset, "meta/info.json", LeRobotDataset),
    "report.json": (lambda p: strangers.run(p.sent), "report.json", lambda run: to_markdown([read_entry(run)] * 2)),
    "timeline": (lambda p: strangers.run(p.sent), "timelines/00000001.json", lambda run: read_timelines(run, None)),
    "state.json": (
        lambda p: strangers.run(p.sent), "checkpoints/00000001/state.json",
        lambda run: load_checkpoint(run / "checkpoints/00000001"),
    ),
    "config.yaml": (
        lambda p: strangers.run(p.sent), "config.yaml", lambda run: load_config(TrainConfig, run / "config.yaml")
    ),
    "costs.json": (
        lambda p: strangers.written(p.sent / "costs.json", strangers.costs()).parent, "costs.json",
        lambda folder: CostFile.read(folder / "costs.json"),
    ),
    "plan.json": (
        lambda p: strangers.written(p.sent / "plan.json", strangers.plan()).parent, "plan.json",
        lambda folder: expand_stored_plan([f"plan={folder / 'plan.json'}"]),
    ),
    "format.json": (
        lambda p: _replay(p.sent / "replay"), "format.json", lambda folder: ReplayStorage.open(folder)
    ),
}  # fmt: skip


def _replay(folder: Path) -> Path:
    ReplayStorage(layout(6, tracks=2), folder).close()
    return folder


@pytest.mark.parametrize("name", READERS)
def test_any_entry_may_be_anything(plant: Plant, name: str) -> None:
    """Each entry replaced by what it is not: the file is read, or refused by its name; nothing else."""
    make, file, read = READERS[name]
    folder = make(plant)
    sound = json.loads((folder / file).read_text())
    read(folder)
    refused = 0
    for changed in mutate(sound):
        (folder / file).write_text(json.dumps(changed))
        try:
            read(folder)
        except UserError as error:
            refused += 1
            assert str(plant.sent) in str(error), f"no file is named: {error}"
    assert refused > 10


def test_any_entry_of_a_header_may_be_anything(plant: Plant) -> None:
    file = strangers.policy_of_pi0(plant.sent, lambda header: None, {})
    found = strangers.read_header(file)
    found["source"] |= {key: dict(list(found["source"][key].items())[:2]) for key in ("names", "dtypes")}
    found["adapters"] = {"rank": 2, "alpha": None}
    refused = 0
    for changed in mutate(found):
        strangers.policy_with_header(plant.sent, json.dumps(changed))
        try:
            read_metadata(plant.sent / "policy.safetensors")
        except UserError as error:
            refused += 1
            assert str(plant.sent) in str(error), f"no file is named: {error}"
    assert refused > 100


SIZES = [
    ("config", "width", 10**30), ("config", "keypoints", 2**63), ("config", "horizon", 2**62),
    ("config", "stem_channels", 2**60), ("embodiment", "token_length", -(10**30)),
    ("embodiment", "token_length", 2**62), ("embodiment", "image_size", [-(10**30), 64]),
    ("embodiment", "image_size", [2**62, 64]),
]  # fmt: skip


def _outline(file: Path) -> object:
    spec = SimulatorKind.find(SimNode("tabletop")).spec
    return outline_backbone(PolicyNode("pocket", checkpoint=str(file)), spec)


@pytest.mark.parametrize(("group", "name", "value"), SIZES)
@pytest.mark.parametrize("load", [load_backbone, _outline])
def test_sizes_that_no_network_has(
    plant: Plant, load: Callable[[Path], object], group: str, name: str, value: object
) -> None:
    file = strangers.policy(plant.sent, lambda header: header[group].update({name: value}))
    with pytest.raises(UserError, match=str(file)):
        load(file)


def test_a_state_names_a_file_outside(plant: Plant) -> None:
    run = strangers.run(plant.sent)
    state = run / "checkpoints/00000001/state.json"
    strangers.change_json(
        state, lambda said: (said["sha256"].update({"../../../../../outside/secret.json": "0"}), said.pop("digest"))
    )
    with pytest.raises(UserError, match="which is not in its folder, and is not opened"):
        load_checkpoint(state.parent)


class Moments:
    """What has no moments yet."""

    def make_moments(self, names: list[str]) -> dict[str, torch.Tensor]:
        return {}

    def shards(self, everything: bool = False) -> dict[str, torch.Tensor]:
        return {}


@pytest.mark.parametrize("places", [None, "evil", "[]", "{}", strangers.DEEP, '{"0/a": {"saved_offsets": ["x"]}}'])
def test_a_shard_may_be_anything(tmp_path: Path, places: str | None) -> None:
    (tmp_path / "shards").mkdir()
    metadata = {} if places is None else {"DCP_SHARDING_INFO": places}
    save_file({"0/a": torch.zeros(2)}, tmp_path / "shards/shard-00001.safetensors", metadata)
    with pytest.raises(UserError, match=r"shard-00001.safetensors is damaged, or not a shard"):
        shards.read_shards(tmp_path, None, [Moments()])  # pyright: ignore[reportArgumentType]


def test_a_pickled_shard_stays_closed(plant: Plant) -> None:
    strangers.replaced(plant.sent, "shards/shard-00001.safetensors", building.POISON)
    with pytest.raises(UserError, match=r"shard-00001.safetensors is damaged, or not a shard"):
        shards.read_shards(plant.sent, None, [Moments()])  # pyright: ignore[reportArgumentType]


def test_a_replay_storage_of_pickled_objects(plant: Plant) -> None:
    folder = _replay(plant.sent / "replay")
    np.save(folder / "reward.npy", np.array([plant], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"reward.npy is missing or damaged"):
        ReplayStorage.open(folder)
    assert not plant.mark.exists()


PIPES: dict[str, Reader] = {
    **{name: READERS[name] for name in ("report.json", "timeline", "costs.json", "format.json", "meta/info.json")},
    "stats.json": (strangers.dataset, "meta/stats.json", LeRobotDataset),
    "parquet": (strangers.dataset, "data/chunk-000/file-000.parquet", LeRobotDataset),
    "video": (
        strangers.dataset, "videos/observation.images.front/chunk-000/file-000.mp4", LeRobotDataset
    ),
    "scores": (
        lambda p: strangers.written(p.sent / "scores/1.jsonl", '{"scorer": "x"}\n').parent, "2.jsonl",
        lambda folder: list(read_scores(folder)),
    ),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", PIPES)
def test_a_file_that_does_not_end(plant: Plant, name: str, kind: str) -> None:
    """A pipe would be waited for, a device would fill the memory."""
    make, file, read = PIPES[name]
    folder = make(plant)
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file) if kind == "pipe" else (folder / file).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"is not opened"):
        read(folder)


def test_a_link_that_leads_back_to_itself(plant: Plant) -> None:
    run = strangers.run(plant.sent)
    for name in ("overrides.txt", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(name)
    for read in (read_entry, lambda run: MetricsWriter(run / "metrics.jsonl")):
        with pytest.raises(UserError, match=str(plant.sent)):
            read(run)


def test_metrics_and_lock_are_not_written_through_links(plant: Plant) -> None:
    for name in ("metrics.jsonl", "run.lock"):
        (plant.sent / name).symlink_to(plant.outside / "new")
    with pytest.raises(UserError, match="is a link to"):
        MetricsWriter(plant.sent / "metrics.jsonl")
    with pytest.raises(UserError, match="is a link to"), hold_run(plant.sent):
        pass
    assert not (plant.outside / "new").exists()


def test_metrics_that_are_none_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"iteration": 1}',
        strangers.DEEP,
        f'{{"a": {strangers.LONG}}}',
        '{"a": NaN}',
        '{"a": []}',
        "3",
        '{"iteration": 2}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.warns(RuntimeWarning, match="skipped line 2, 3, 4, 5, 6"):
        assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 1}, {"iteration": 2}]


SCRIPT = "<script>alert(1)</script>"


def test_pages_hold_no_script_of_a_report(plant: Plant) -> None:
    """In a task's, a family's and a run's name, in what was typed, and in metadata."""
    run = strangers.run(plant.sent).rename(plant.sent / f"{SCRIPT[:8]}_s0")
    rate = strangers.report()["tasks"]["push"]
    named = {"families": {SCRIPT: rate}, "tasks": {SCRIPT: rate}}
    content = strangers.report(**named, metadata={"split": SCRIPT, "simulators": [{"name": SCRIPT}]})
    strangers.written(run / "report.json", content)
    strangers.written(run / "overrides.txt", f"algo.lr={SCRIPT}\n")
    entry = read_entry(run)
    write_comparison(plant.work / "compare.html", [entry, entry])
    page = (plant.work / "compare.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert" in page


def test_a_terminal_is_told_nothing(plant: Plant, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by what is shown, nor by an error."""
    evil = "\x1b]0;evil\x07"
    file = strangers.policy(plant.sent, lambda header: header["extra"].update(sim=evil))
    assert main(["inspect", str(file)]) == 0
    strangers.reheaded(file, lambda header: header.update(policy=evil))
    assert main(["export", str(file), "out=x"]) == 2
    said = capfd.readouterr()
    assert "evil" in said.out and "evil" in said.err and "\x1b" not in said.out + said.err


def test_a_video_is_no_address(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the dataset is the folder one stands in, so that FFmpeg sees the pattern from its first letter."""
    concat = f"concat:{plant.outside / 'data' / 'x.mp4'}"
    folder = strangers.dataset(plant, lambda info: info.update(video_path="concat:{video_key}|{file_index}.mp4"))
    (plant.outside / "data/x.mp4").write_bytes(b"")
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match=r"/data/concat:observation.images.front\|0.mp4 is missing or damaged"):
        LeRobotDataset(".")
    assert concat


def test_the_cache_of_a_hub_may_link_to_its_blobs(tmp_path: Path) -> None:
    made = datasets.made(tmp_path / "made", 1, datasets.NUMBERS)
    cache, snapshot = tmp_path / "datasets--x", tmp_path / "datasets--x/snapshots/0123"
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(file for file in made.rglob("*") if file.is_file()):
        link = snapshot / file.relative_to(made)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.rename(cache / "blobs" / str(number)))
    assert len(LeRobotDataset(snapshot)) == datasets.length(0)


@pytest.mark.parametrize("name", ["", ".", "/x", "..", "a/../b", "a\\b", "a\x1bb"])
def test_a_name_leaves_its_folder(name: str) -> None:
    with pytest.raises(UserError, match="is not in its folder"):
        check_name(name, "here")


def test_a_name_that_stays() -> None:
    check_name("assets/a..b/norm_stats.json", "here")


def test_a_folder_may_be_a_link_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    check_inside(tmp_path / "link", tmp_path / "link" / "x")


@pytest.mark.parametrize("text", ["{", strangers.DEEP, strangers.LONG, b"\xff\xfe\x00"])
def test_text_that_is_no_json(text: str | bytes) -> None:
    with pytest.raises(UserError, match=r"^here is damaged: .+"):
        parse_json(text, "here")


def test_a_reason_is_one_short_line() -> None:
    assert shorten(ValueError("a\n  b\x1b.")) == "a b?" and len(shorten(ValueError("x" * 999))) < 210


@pytest.mark.parametrize("message", ["no number", "mine.json: no number"])
def test_a_file_is_named_once(message: str) -> None:
    with pytest.raises(UserError) as caught, name_file(Path("mine.json")):
        raise UserError(message, code="value-invalid")
    assert (str(caught.value), caught.value.code) == ("mine.json: no number", "value-invalid")
