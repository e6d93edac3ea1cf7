"""Names on the Hub, against a small Hub on loopback that cuts, stalls, lies and refuses."""

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from embodied_rl import load_policy
from embodied_rl.checkpoints.model_card import make_card
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.cli.main import main
from embodied_rl.commands.export import find_report
from embodied_rl.config import assets, hub
from embodied_rl.interfaces.sim import Task
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.schema import PolicyNode
from embodied_rl.schema.untrusted_settings import check_file
from embodied_rl.training.algorithms.imitation.cloning_data import open_dataset
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support import strangers
from tests.support.building_checkpoints import lerobot
from tests.support.hub import Hub, serve_hub
from tests.support.making_datasets import assert_holds, made
from tests.support.refusals import refuses

WEIGHTS = bytes(range(256)) * 800
REPO, DATA = "models/me/net", "datasets/me/data"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub with a model of two revisions and a dataset, and an empty cache."""
    first = {"config.json": b"{}", "model.safetensors": WEIGHTS, "code.py": b"raise SystemExit", "old.bin": b"x" * 2000}
    found = Hub(
        {
            REPO: {"main": {**first, "step_2/model.safetensors": WEIGHTS[:4000]}, "old": {"config.json": b"{} "}},
            DATA: {
                "main": {
                    "meta/info.json": b"{}",
                    "data/chunk-000/file-000.parquet": WEIGHTS[:3000],
                    "data.py": b"raise",
                }
            },
        }
    )
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve_hub(found) as address:
        settings = {
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "ENDPOINT": address,
            "HUGGINGFACE_CO_URL_TEMPLATE": address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DOWNLOAD_TIMEOUT": 1,
            "DOWNLOAD_CHUNK_SIZE": 1000,
        }
        for name, value in settings.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        yield found


def pinned(server: Hub, repo: str = REPO, revision: str = "main") -> str:
    return server.commit(repo, revision)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:me/net", ("me/net", "model", None, "")),
        ("hf:me/net@v1.0:a/b", ("me/net", "model", "v1.0", "a/b")),
        ("hf:me/net:policy.safetensors", ("me/net", "model", None, "policy.safetensors")),
        ("hf:datasets/me/data@main", ("me/data", "dataset", "main", "")),
    ],
)
def test_a_name_has_a_repository_a_revision_and_a_path(text: str, expected: tuple[str, ...]) -> None:
    found = hub.HubName.parse(text)
    assert (found.repo, found.kind, found.revision, found.path) == expected and str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "hf:net",
        "hf:",
        "hf:me/net@",
        "hf:me/net:",
        "hf:me/net:../x",
        "hf:me/net:/etc",
        "hf:a/b/c",
        "hf:me/n t",
        "hf:../..",
        "hf:me/a..b",
        "hf:-me/x",
        "hf:me/x.git",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with refuses("hub-name-invalid", text):
        hub.HubName.parse(text)


def test_weights_are_downloaded_once_and_pinned(server: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    commit = pinned(server)
    assert hub.download("hf:me/net") == f"hf:me/net@{commit}"
    size = len(WEIGHTS) + 4000 + 2
    assert f"{size:,} bytes in 3 files" in capsys.readouterr().out, "the size is printed before"
    folder = assets.resolve_path(f"hf:me/net@{commit}")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not list(folder.rglob("*.py")) and not list(folder.rglob("*.bin")), "what could run code stays there"
    server.asked.clear()
    assert hub.download(f"hf:me/net@{commit}") == f"hf:me/net@{commit}" and server.asked == []
    assert hub.download("hf:me/net@old") == f"hf:me/net@{pinned(server, revision='old')}"


def test_a_folder_and_a_file_of_a_repository(server: Hub) -> None:
    for path in ("step_2", "model.safetensors"):
        found = hub.download(f"hf:me/net:{path}")
        assert found == f"hf:me/net@{pinned(server)}:{path}" and assets.resolve_path(found).exists()
    folder = assets.resolve_path(f"hf:me/net@{pinned(server)}:step_2")
    assert [file.name for file in folder.iterdir()] == ["model.safetensors"]
    with refuses("hub-incomplete", "only a part"):
        assets.resolve_path(f"hf:me/net@{pinned(server)}")
    with refuses("hub-empty", "no file of safetensors"):
        hub.download("hf:me/net:step_3")


def test_a_pickled_part_of_a_policy_is_told(server: Hub) -> None:
    """OpenVLA-OFT's: without it the rest would be read as another policy. As safetensors it is downloaded."""
    part, files = "proprio_projector--5_checkpoint", server.repos[REPO]["main"]
    files[f"{part}.pt"] = b"pickle"
    with refuses("checkpoint-is-pickle", f"{part}.pt"):
        hub.download("hf:me/net")
    files[f"{part}.safetensors"] = WEIGHTS
    folder = hub.find_downloaded(hub.download("hf:me/net"))
    assert {file.name for file in folder.glob("*--*")} == {f"{part}.safetensors"}


def test_a_dataset(server: Hub) -> None:
    named = f"hf:datasets/me/data@{pinned(server, DATA)}"
    assert hub.download_all({"dataset": "hf:me/data", "seed": 1}, ["dataset"]) == {"dataset": named, "seed": 1}
    assert (assets.resolve_path(named) / "data/chunk-000/file-000.parquet").read_bytes() == WEIGHTS[:3000]
    assert not (assets.resolve_path(named) / "data.py").exists(), "what could run code stays there"


def test_a_dataset_is_read_from_the_cache(server: Hub, tmp_path: Path) -> None:
    folder = made(tmp_path / "own", 2)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    server.repos[DATA] = {"main": files}
    with open_dataset(hub.download("hf:me/data", "dataset")) as dataset:
        assert_holds(dataset, 2)


def test_keys_say_what_may_be_on_the_hub(server: Hub) -> None:
    name = f"hf:me/net@{pinned(server)}"
    given = {"policy": {"checkpoint": "hf:me/net"}, "policies": {"pick": "hf:me/net"}, "run": {"root": "runs"}}
    found = hub.download_all(given, ["policy.checkpoint", "policies"])
    assert found == {**given, "policy": {"checkpoint": name}, "policies": {"pick": name}}
    server.repos["models/me/words"] = {"main": {"tokenizer.json": b"{}", "model.safetensors": WEIGHTS}}
    words = f"hf:me/words@{pinned(server, 'models/me/words')}:tokenizer.json"
    typed = hub.download_all({"policy": {"tokenizer": "hf:me/words"}}, ["policy.tokenizer"])
    assert typed == {"policy": {"tokenizer": words}}
    shown = hub.download_all({"source": "hf:me/data"}, ["source"])
    assert shown == {"source": f"hf:datasets/me/data@{pinned(server, DATA)}"}
    assert not assets.resolve_path(words).with_name("model.safetensors").exists(), "a tokenizer without its weights"
    with refuses("hub-not-here", "run.root=hf:me/net"):
        hub.download_all({"run": {"root": "hf:me/net"}}, ["run.root"])
    with refuses("hub-not-here", "runs=hf:me/net"):
        hub.download_all({"runs": ["hf:me/net"]}, ["runs"])


def test_what_a_file_names_is_not_downloaded_beside_what_is_typed(
    server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\n# train: of a stranger\npolicy:\n  checkpoint: hf:me/net\n"
    (tmp_path / "experiment" / "theirs.yaml").write_text(text)
    words = ["experiment=theirs", "policy.tokenizer=hf:me/words", "--config-dir", str(tmp_path), "--dry-run"]
    server.repos["models/me/words"] = {"main": {"tokenizer.json": b"{}"}}
    assert main(["train", *words]) == 2 and "[hub-not-pinned]" in capsys.readouterr().err
    assert not any("me/net" in request for request in server.asked)


@pytest.mark.thorough
def test_sweeps_pin_each_name(server: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    own = {"policy.safetensors": assets.find_asset("tabletop_base.safetensors").read_bytes()}
    server.repos.update({"models/me/own": {"main": own}, "models/me/two": {"main": own}})
    assert main(["train", "experiment=demo", "policy.checkpoint=hf:me/own", "seed=1,2", "-m", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("the configuration is sound") == 2
    assert main(["eval", "-m", "policy=hf:me/own,hf:me/two", "episodes=2", "--dry-run"]) == 0


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_what_was_cut_off_continues(server: Hub, fault: str) -> None:
    server.fault = fault
    folder = assets.resolve_path(hub.download("hf:me/net"))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    again = len(WEIGHTS) // 2 + 2000 if fault == "reset" else 2 * 1000
    assert server.cut and server.sent <= len(WEIGHTS) + 4000 + 2 + again, "at most a chunk of each is sent twice"


def test_a_hub_that_stalls_ends_with_its_name(server: Hub) -> None:
    server.fault = "silent"
    with refuses("hub-interrupted", "hf:me/net", "continues it"):
        hub.download("hf:me/net")


def test_a_comparison_that_was_interrupted_is_made_up_for(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.fault = "content"
    with monkeypatch.context() as patch:
        patch.setattr(hub, "_check_content", lambda *_: (_ for _ in ()).throw(ConnectionError("ended")))
        with refuses("hub-interrupted"):
            hub.download("hf:me/net")
    with refuses("hub-unchecked", "Type it again"):
        assets.resolve_path(f"hf:me/net@{pinned(server)}")
    with refuses("hub-damaged"):
        hub.download("hf:me/net")
    server.fault = ""
    assert (assets.resolve_path(hub.download("hf:me/net")) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("fault", ["size", "content"])
def test_what_is_not_as_listed_is_deleted(server: Hub, fault: str) -> None:
    server.fault = fault
    with refuses("hub-damaged", "model.safetensors", "step_2/model.safetensors"):
        hub.download("hf:me/net")
    server.fault = ""
    assert (assets.resolve_path(hub.download("hf:me/net:step_2")) / "model.safetensors").read_bytes() == WEIGHTS[:4000]


@pytest.mark.parametrize(
    ("text", "fault", "code"),
    [
        ("hf:me/none", "", "hub-missing"),
        ("hf:me/net@none", "", "hub-revision"),
        ("hf:me/net", "gated", "hub-gated"),
        ("hf:me/net", "down", "hub-refused"),
        ("hf:me/net", "portal", "hub-refused"),
        ("hf:me/net", "odd", "hub-refused"),
        (f"hf:me/net@{'0' * 40}", "odd", "hub-refused"),
    ],
)
def test_a_refusal_is_told(server: Hub, text: str, fault: str, code: str) -> None:
    server.fault = fault
    with refuses(code, text):
        hub.download(text)


def test_offline_the_cache_answers(
    server: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.download("hf:me/net")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    server.asked.clear()
    assert hub.download("hf:me/net") == f"hf:me/net@{pinned(server)}"
    assert server.asked == [] and "of the cache" in capsys.readouterr().out
    with refuses("hub-offline", "hf:me/other"):
        hub.download("hf:me/other")


def test_nothing_is_downloaded_where_a_file_names_it(server: Hub) -> None:
    with refuses("hub-not-pinned", "hf:me/net"):
        assets.resolve_path("hf:me/net")
    with refuses("hub-offline", "not downloaded"):
        assets.resolve_path(f"hf:me/net@{'0' * 40}")
    assert server.asked == []


def test_a_file_names_nothing_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the name would be a path inside of the file's folder
    stored = {"name": "pocket", "checkpoint": f"hf:me/net@{'0' * 40}"}
    with refuses("setting-not-trusted", "policy.checkpoint"):
        check_file(PolicyNode, stored, "config.yaml", folder=tmp_path, where="policy")


def test_commands_take_names_and_pin_them(server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.repos["models/me/own"] = {
        "main": {"policy.safetensors": assets.find_asset("tabletop_base.safetensors").read_bytes()}
    }
    name = f"hf:me/own@{pinned(server, 'models/me/own')}"
    assert main(["inspect", "hf:me/own"]) == 0 and f"Downloading {name}" in capsys.readouterr().out
    out = tmp_path / "out"
    assert (
        main(["eval", "hf:me/own", "episodes=1", "video.episodes=0", "video.best=0", "video.worst=0", f"out={out}"])
        == 0
    )
    kept = json.loads((out / "report.json").read_text())["metadata"]
    assert kept["checkpoint"] == name, "provenance names the commit"
    server.asked.clear()
    assert main(["train", "experiment=demo", f"policy.checkpoint={name}", "--dry-run"]) == 0 and server.asked == []
    assert load_policy("hf:me/own").spec.action_names
    capsys.readouterr()
    assert main(["train", "run.root=hf:me/own", "--dry-run"]) == 2 and "[hub-not-here]" in capsys.readouterr().err
    assert main(["eval", "hf:me/none"]) == 2 and "[hub-missing]" in capsys.readouterr().err


def test_an_export_is_uploaded_with_its_card(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = strangers.policy_of_pi0(tmp_path, lambda header: None, {})
    words = ["export", str(file), f"out={tmp_path / 'made'}", "to=hf:me/new"]
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    assert main(words) == 2 and "[hub-token-missing]" in capsys.readouterr().err and not server.asked
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    assert main([*words[:3], "to=hf:datasets/me/new"]) == 2 and "[hub-name-invalid]" in capsys.readouterr().err
    server.fault = "forbidden"
    assert main(words) == 2 and "[hub-refused]" in capsys.readouterr().err
    assert not (tmp_path / "made").exists(), "refused before the export"
    server.fault = ""
    assert main(words) == 0
    commit = pinned(server, "models/me/new")
    assert f"Uploaded: hf:me/new@{commit}" in capsys.readouterr().out
    assert server.private["models/me/new"] and server.tokens == {"Bearer hf_of_a_test"}
    card = server.repos["models/me/new"]["main"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: lerobot\n") and "No evaluation was stored" in card
    assert str(tmp_path) not in card
    assert main(["inspect", f"hf:me/new@{commit}"]) == 0 and "pi0" in capsys.readouterr().out
    assert main([*words[:2], f"out={tmp_path / 'again'}", "to=hf:me/new@next:step_1"]) == 0
    card = server.repos["models/me/new"]["next"]["step_1/README.md"].decode()
    assert "policy.checkpoint=hf:me/new@next:step_1" in card


def test_an_earlier_checkpoint_has_no_report(tmp_path: Path) -> None:
    run, early = tmp_path / "run", tmp_path / "run" / "checkpoints" / "00000001"
    early.mkdir(parents=True)
    (run / "config.yaml").write_text("")
    report = make_report(tmp_path)
    report.write(run)
    for file in (run / "policy.safetensors", early / "policy.safetensors"):
        file.touch()
    assert find_report(run / "policy.safetensors") == report and find_report(early / "policy.safetensors") is None


def make_report(folder: Path) -> Report:
    """Six of eight successes on two tasks, by a run with paths of this machine."""
    results = [EpisodeResult(k, k % 2, k, "train", k < 6, False, 5, 1.0, 0.0, None) for k in range(8)]
    tasks = (Task("pick red", "pick"), Task("press", "press"))
    spec = replace(Tabletop.spec_of(TabletopConfig()), tasks=tasks)
    about = {"simulator": "tabletop", "split": "eval", "seed": 3, "commit": "abc", "kind": "training"}
    return Report.from_results(results, spec, {**about, "run": str(folder), "command": f"train {folder}"})


def test_a_card_holds_the_reports_rates_and_no_path(tmp_path: Path) -> None:
    metadata = read_metadata(assets.find_asset("tabletop_base.safetensors"))
    card = make_card(hub.HubName.parse("hf:me/net"), "lerobot", metadata, make_report(tmp_path))
    assert "| all | 75.0% | 40.9% – 92.9% | 8 |" in card and "| press | 75.0% |" in card
    assert "seed `3`" in card and "commit `abc`" in card and str(tmp_path) not in card
    card = make_card(hub.HubName.parse("hf:me/net"), "peft", metadata, None, "lerobot/pi0_base")
    assert "base_model: lerobot/pi0_base\n" in card and "embodied-rl import" not in card


def test_a_checkpoint_in_a_folder_of_a_repository(
    server: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = lerobot(tmp_path / "pi0", "pi0")
    files = {f"steps/2/{file.name}": file.read_bytes() for file in folder.iterdir() if file.is_file()}
    server.repos["models/me/pi0"] = {"main": files}
    assert main(["inspect", "hf:me/pi0:steps/2"]) == 0
    assert "lerobot" in capsys.readouterr().out


def test_a_disk_without_space_is_told_before(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda place: SimpleNamespace(free=10))
    with refuses("disk-full", "hf:me/net", "HF_HOME"):
        hub.download("hf:me/net")
    assert server.sent == 0


def test_a_disk_that_fills_during_a_download_is_full(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(hub, "_check_content", lambda *_: (_ for _ in ()).throw(full))
    with refuses("disk-full", "hf:me/net", "HF_HOME"):
        hub.download("hf:me/net")
