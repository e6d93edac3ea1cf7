"""A small Hugging Face Hub on loopback, with the answers that huggingface_hub 2.4 reads, and faults."""

import base64
import hashlib
import json
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

LARGE = 1000
"""Bytes from which a file is stored by its SHA-256, as with Git LFS."""


@dataclass
class Hub:
    """Repositories and faults.

    Attributes:
        repos: "models/<owner>/<name>" or "datasets/…" → revision → file → content.
        commits: (repository, revision) → commit.
        fault: "cut" closes the connection in the middle of a large file, once for each file, and "reset" resets it;
            "silent" never sends one; "size" lists one byte more than there are; "content" sends other bytes of the same
            number; "odd" answers with JSON that no Hub sends; "gated", "missing" and "forbidden" refuse; "down" answers
            500, "portal" a page.
        asked: method and path of every request. sent: bytes of files that were sent.
        large: uploaded large files by their SHA-256. private: new repositories.
        tokens: of all calls of an upload, but for the files' storage.
    """

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    fault: str = ""
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    cut: set[str] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)
    large: dict[str, bytes] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    address: str = ""

    def commit(self, repo: str, revision: str) -> str:
        return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()

    def find(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return the commit and the files of a revision, which may be a commit itself."""
        for name, files in self.repos.get(repo, {}).items():
            if revision in (name, self.commit(repo, name)):
                return self.commit(repo, name), files
        return None


@contextmanager
def serve_hub(hub: Hub) -> Iterator[str]:
    """Serve a hub; give its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(hub, self)

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:
            receive(hub, self, self.rfile.read(int(self.headers["Content-Length"])))

        do_PUT = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub.address
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()


def answer(hub: Hub, request: BaseHTTPRequestHandler) -> None:
    """Answer one request for a revision, a tree or a file."""
    path = unquote(urlparse(request.path).path).strip("/")
    hub.asked.append(f"{request.command} {path}")
    if hub.fault == "portal":
        send(request, 200, b"<html>Accept our terms</html>")
    elif hub.fault == "odd":
        send(request, 200, b"[{}]")
    elif hub.fault == "down":
        send(request, 500, b"{}")
    elif hub.fault == "gated":
        send(request, 403, b"{}", {"X-Error-Code": "GatedRepo"})
    elif found := re.fullmatch(r"api/(\w+/[^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
        send_listing(hub, request, *found.groups())
    elif found := re.fullmatch(r"(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
        repo = f"{'datasets' if found[1] else 'models'}/{found[2]}"
        known = hub.find(repo, found[3])
        if known is None or found[4] not in known[1]:
            send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})
        else:
            send_file(hub, request, known[0], found[4], known[1][found[4]])
    else:
        send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})


def receive(hub: Hub, request: BaseHTTPRequestHandler, body: bytes) -> None:
    """Answer one request of an upload: a new repository, an upload's kind, a large file, or a commit."""
    path = unquote(urlparse(request.path).path).strip("/")
    hub.asked.append(f"{request.command} {path}")
    if path.startswith("api/"):
        hub.tokens.add(request.headers.get("Authorization"))
    if hub.fault == "forbidden":
        send(request, 403, b'{"error": "no right to write"}')
    elif path == "api/repos/create":
        made = json.loads(body)
        hub.private[f"models/{made['organization']}/{made['name']}"] = made.get("visibility") == "private"
        send(request, 200, json.dumps({"url": f"{hub.address}/{made['organization']}/{made['name']}"}).encode())
    elif path == "api/validate-yaml":
        send(request, 200, b'{"errors": [], "warnings": []}')
    elif path.endswith("/info/lfs/objects/batch"):
        objects = [
            {**each, "actions": {"upload": {"href": f"{hub.address}/lfs/{each['oid']}"}}}
            for each in json.loads(body)["objects"]
        ]
        send(request, 200, json.dumps({"transfer": "basic", "objects": objects}).encode())
    elif path.startswith("lfs/"):
        hub.large[path.removeprefix("lfs/")] = body
        send(request, 200, b"{}")
    elif found := re.fullmatch(r"api/(models/[^/]+/[^/]+)/branch/(.+)", path):
        hub.repos.setdefault(found[1], {}).setdefault(found[2], {})
        send(request, 200, b"{}")
    elif (found := re.fullmatch(r"api/(models/[^/]+/[^/]+)/(?:commit|preupload)/(.+)", path)) and not (
        found[2] == "main" or hub.find(found[1], found[2])
    ):
        send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    elif found := re.fullmatch(r"api/(models/[^/]+/[^/]+)/preupload/(.+)", path):
        files = [
            {"path": each["path"], "uploadMode": "lfs" if each["size"] >= LARGE else "regular", "shouldIgnore": False}
            for each in json.loads(body)["files"]
        ]
        send(request, 200, json.dumps({"files": files}).encode())
    elif found := re.fullmatch(r"api/(models/[^/]+/[^/]+)/commit/(.+)", path):
        commit(hub, found[1], found[2], [json.loads(line) for line in body.splitlines()])
        oid = hub.commit(found[1], found[2])
        answered = {
            "commitUrl": f"{hub.address}/{found[1].removeprefix('models/')}/commit/{oid}",
            "commitOid": oid,
            "success": True,
        }
        send(request, 200, json.dumps(answered).encode())
    else:
        send(request, 404, b"{}")


def commit(hub: Hub, repo: str, branch: str, rows: list[dict[str, Any]]) -> None:
    """Add a commit's files to a branch."""
    files = hub.repos.setdefault(repo, {}).setdefault(branch, {})
    for row in rows:
        value = row["value"]
        if row["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif row["key"] == "lfsFile":
            files[value["path"]] = hub.large[value["oid"]]


def send_listing(hub: Hub, request: BaseHTTPRequestHandler, repo: str, what: str, revision: str) -> None:
    known = hub.find(repo, revision)
    if repo not in hub.repos or hub.fault == "missing":
        return send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
    if known is None:
        return send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
    if what == "revision":
        about = {"id": repo.partition("/")[2], "sha": known[0], "siblings": [{"rfilename": name} for name in known[1]]}
        return send(request, 200, json.dumps(about).encode())
    more = 1 if hub.fault == "size" else 0
    rows = []
    for name, content in known[1].items():
        size = len(content) + more
        row = {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(content).hexdigest()}
        if len(content) >= LARGE:
            row["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 130}
        rows.append(row)
    return send(request, 200, json.dumps(rows).encode())


def send_file(hub: Hub, request: BaseHTTPRequestHandler, commit: str, name: str, content: bytes) -> None:
    digest = (hashlib.sha256 if len(content) >= LARGE else hashlib.sha1)(content).hexdigest()
    headers = {"ETag": f'"{digest}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
    large = len(content) >= LARGE
    if hub.fault == "content" and large:
        content = bytes(byte ^ 1 for byte in content)
    start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
    part = content[start:]
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    if request.command == "HEAD":
        return send(request, 200, content, headers)
    if hub.fault == "silent":
        hub.released.wait(60)
        return None
    ends_early = large and hub.fault in ("cut", "reset") and name not in hub.cut
    hub.sent += len(part) // 2 if ends_early else len(part)
    if not ends_early:
        return send(request, 206 if start else 200, part, headers)
    hub.cut.add(name)
    send(request, 206 if start else 200, part, headers, part[: len(part) // 2])
    request.close_connection = True
    if hub.fault == "reset":
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(request.connection.detach())
    return None


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    sent: bytes | None = None,
) -> None:
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body if sent is None else sent)
        request.wfile.flush()
