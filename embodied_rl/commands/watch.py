"""`embodied-rl watch`: a page on this machine with the curves and films of runs while they train."""

import json
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.watched_runs import WatchedRun, find_film, make_frame, make_parts, name_runs
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import WatchConfig

HOST = "127.0.0.1"


def run(config: WatchConfig) -> int:
    """Serve the page on loopback until Ctrl-C.

    Raises:
        UserError: a run does not exist, or the port is taken.
    """
    runs = find_runs(config)
    with open_server(runs, config.port) as server:
        print(f"http://{HOST}:{server.server_port} shows the runs; Ctrl-C ends it.", flush=True)
        server.serve_forever()
    return 0


def check_start(config: WatchConfig) -> list[tuple[str, str]]:
    """Check that the runs can be shown; return them as rows of text."""
    return [("run", f"{run.label}: {run.folder.path}") for run in find_runs(config)]


def find_runs(config: WatchConfig) -> list[WatchedRun]:
    """Return the runs to show, or the newest one below `root`; raise `UserError` if there is none, or it is damaged."""
    runs = name_runs([RunFolder.open(path) for path in config.runs] or [RunFolder.latest(config.root)])
    make_parts(runs)  # a file that is damaged or a link elsewhere is refused before a page is shown
    return runs


def open_server(runs: Sequence[WatchedRun], port: int) -> ThreadingHTTPServer:
    """Open a server of the page and its parts; port 0 takes a free one. Raises `UserError` if the port is taken."""
    handler = type("Handler", (PageHandler,), {"runs": tuple(runs)})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except OSError as error:
        message = f"port={port} cannot be opened: {error.strerror}. Give another, or port=0 for a free one."
        raise UserError(message, code="port-taken") from error
    server.daemon_threads = True
    return server


class PageHandler(BaseHTTPRequestHandler):
    """Answers a browser on this machine; `runs` are those shown."""

    runs: Sequence[WatchedRun] = ()

    def do_GET(self) -> None:
        """Answer with the page, its changing parts as JSON, or a film."""
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            return self.send_error(403, "Only pages of this machine may ask.")  # DNS rebinding
        path = self.path.partition("?")[0]
        if path == "/":
            return self._answer("text/html; charset=utf-8", make_frame(self.runs).encode())
        if path == "/parts":
            return self._answer("application/json", json.dumps(make_parts(self.runs)).encode())
        kind, _, rest = path.removeprefix("/").partition("/")
        number, _, name = rest.partition("/")
        film = find_film(self.runs, number, name) if kind == "film" else None
        if film is None:
            return self.send_error(404)
        return self._answer("video/mp4", film.read_bytes())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for each request."""

    def _answer(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        policy = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        for name, value in (headers | {"Content-Security-Policy": policy}).items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # a browser ends what it no longer needs, such as the rest of a film
            self.end_headers()
            self.wfile.write(content)
