"""`embodied-rl watch` shows what runs have written so far, to browsers on this machine alone."""

import http.client
import json
import os
import re
import threading

import pytest

from embodied_rl.cli.main import main
from embodied_rl.commands.watch import find_runs, open_server
from embodied_rl.reports.watched_runs import make_parts, name_runs
from embodied_rl.runs.audit_file import AuditFile
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import WatchConfig
from tests.support.refusals import refuses


@pytest.fixture
def make_run(tmp_path):
    def make(seed, success, experiment="demo"):
        folder = RunFolder.create(tmp_path / "runs", experiment, seed)
        folder.write_config("train: {}\n", ())
        rows = [
            {"iteration": n, "rollout/success": 0.25, "eval/success": share, "eval/low": share - 0.1,
             "eval/high": share + 0.1, "total/episodes": 1000 * n, "time/elapsed": 90.0 * n}
            for n, share in enumerate(success, start=1)
        ]  # fmt: skip
        folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return make


@pytest.fixture
def ask():
    """Serve some runs; return what asks them for a path, and gives status, type and content."""
    servers = []

    def start(*folders):
        server = open_server(name_runs(folders), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

        def get(path, host=None):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.request("GET", path, headers={} if host is None else {"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type"), answer.read()

        return get

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_robot_s_run_shows_who_executed_what(make_run):
    folder = make_run(0, [0.5])
    assert make_parts(name_runs([folder]))["robot"] == ""
    file = AuditFile(folder.path / "audit" / "rank_0.jsonl")
    chunk = {"purpose": "select", "episode": 0, "decision": 0, "by": [["human", 3]], "end": "terminated"}
    file.append("chunk", chunk)
    assert "3 control steps in evaluations: human 3" in make_parts(name_runs([folder]))["robot"]
    file.close()


def test_curves_and_the_table_show_what_was_written(make_run):
    runs = name_runs([make_run(0, [0.5, 0.75]), make_run(1, [0.5])])
    parts = make_parts(runs)
    assert "demo, seed 0" in parts["curves"] and "demo, seed 1" in parts["curves"]
    assert "75.0 %" in parts["table"] and "25.0 %" in parts["table"] and "2,000" in parts["table"]
    assert parts["curves"].count("<figure") == 2, "a chart without a point is left out"
    assert "<polygon" in parts["curves"], "evaluations have their interval"
    assert parts["films"] == ""


def test_what_a_stranger_wrote_is_text_and_no_code(make_run, ask):
    """A number that is none, numbers that no chart has room for, and a film of a number with 5,000 digits."""
    folder = make_run(0, [0.5, 1e308, -1e308])
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"iteration": "<img src=x onerror=alert(1)>", "rollout/success": 0.5}) + "\n")
    get = ask(folder)
    assert "<img" not in get("/parts")[2].decode() and "&lt;img" in json.loads(get("/parts")[2])["table"]
    assert get(f"/film/{'9' * 5000}/x.mp4")[0] == 404


def test_a_run_that_has_written_nothing_yet_is_shown(tmp_path):
    folder = RunFolder.create(tmp_path, "demo", 0)
    assert "demo, seed 0" in make_parts(name_runs([folder]))["table"]


def test_the_page_is_renewed_from_its_parts(make_run, ask):
    folder = make_run(0, [0.5])
    get = ask(folder)
    status, kind, page = get("/")
    assert status == 200 and kind.startswith("text/html") and b'id="curves"' in page and b'fetch("/parts")' in page
    before = json.loads(get("/parts")[2])
    with folder.metrics.open("a") as file:
        file.write(json.dumps({"iteration": 2, "eval/success": 0.875}) + "\n")
    after = json.loads(get("/parts")[2])
    assert set(after) == {"table", "robot", "curves", "films"} and "87.5 %" in after["table"] and before != after


def test_films_of_the_runs_are_served_and_nothing_else(make_run, ask, tmp_path):
    folder = make_run(0, [0.5])
    (folder.videos / "after").mkdir()
    (folder.videos / "after" / "push & pick.mp4").write_bytes(b"film")
    (tmp_path / "secret.mp4").write_bytes(b"secret")
    (folder.videos / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    get = ask(folder)
    assert "/film/0/after/push%20%26%20pick.mp4" in json.loads(get("/parts")[2])["films"]
    assert get("/film/0/after/push%20%26%20pick.mp4") == (200, "video/mp4", b"film")
    for path in (
        "/film/1/after/x.mp4",
        "/film/0/../config.yaml",
        "/film/0/%2e%2e/config.yaml",
        "/film/x/y",
        "/film/0/link.mp4",
    ):
        assert get(path)[0] == 404, path


def test_names_that_are_no_text_are_shown_and_served(make_run, ask):
    made = make_run(0, [0.5]).path
    folder = RunFolder(made.parent.rename(made.parents[1] / os.fsdecode(b"caf\xe9")) / made.name)
    (folder.videos / os.fsdecode(b'\xe9 "><img src=x>.mp4')).write_bytes(b"film")
    get = ask(folder)
    (address,) = re.findall(r'src="([^"]*)"', json.loads(get("/parts")[2])["films"])
    assert get(address) == (200, "video/mp4", b"film") and b"caf?, seed 0" in get("/")[2]


def test_films_behind_a_link_are_not_looked_for(make_run, tmp_path):
    folder = make_run(0, [0.5])
    folder.videos.rmdir()
    (tmp_path / "outside").mkdir()
    folder.videos.symlink_to(tmp_path / "outside")
    with refuses("link-outside-folder", folder.videos):
        find_runs(WatchConfig((str(folder.path),)))


def test_a_dry_run_names_the_runs(make_run, capsys):
    assert main(["watch", str(make_run(0, [0.5]).path), "--dry-run"]) == 0
    assert "demo, seed 0:" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8090", ""])
def test_another_site_cannot_ask_by_a_name_that_leads_here(make_run, ask, host):
    assert ask(make_run(0, [0.5]))("/parts", host)[0] == 403


def test_runs_of_the_same_name_are_told_apart(make_run):
    labels = [run.label for run in name_runs([make_run(0, []), make_run(0, []), make_run(1, [])])]
    assert len(set(labels)) == 3 and labels[2] == "demo, seed 1" and labels[0].startswith("demo, seed 0 (2")


def test_what_cannot_be_shown_is_refused(tmp_path, make_run, ask):
    with refuses("run-missing"):
        find_runs(WatchConfig((str(tmp_path / "nothing"),)))
    with refuses("run-missing"):
        find_runs(WatchConfig(root=str(tmp_path / "empty")))
    newest = make_run(5, [0.5])
    (run,) = find_runs(WatchConfig(root=str(tmp_path / "runs")))
    assert run.folder.path == newest.path
    server = open_server([run], 0)
    with refuses("port-taken"):
        open_server([run], server.server_port)
    server.server_close()
