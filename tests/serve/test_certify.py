"""`forerun certify --url` against a right server, and against servers that are wrong under speculation."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from conftest import BINARY, Server

Body = dict[str, Any]


def certified(folder: Path, url: str, *flags: str) -> tuple[int, dict[str, Any]]:
    """Runs the command; gives its exit code and the certificate."""
    page = folder / "certificate.html"
    command = [BINARY, "certify", "--url", url, "--out", page, "--time-limit", "240", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert page.exists(), done.stderr
    return done.returncode, json.loads(page.with_suffix(".json").read_text())


@contextmanager
def between(server: Server, change: Callable[[Body], None]) -> Iterator[str]:
    """A server that passes requests on, those with speculation changed: what a faulty server does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if body.get("speculative", {}).get("enabled", True):
                change(body)
            answer = httpx.post(server.url + self.path, json=body, timeout=120)
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()


def test_a_right_server_passes(server: Server, tmp_path: Path) -> None:
    code, certificate = certified(tmp_path, server.url, "--power", "0.3", "--temp", "1", "-n", "6")
    assert (code, certificate["verdict"]) == (0, "passed"), certificate
    found = certificate["server"]
    assert found["ended"] == "power" and found["pairs"] == 96 and found["drafted"] > 0 and found["rule"] == "block", found
    assert found["says_lossless"] is True and found["smallest_difference"] < 0.5, found
    assert found["greedy_same"] == found["greedy"], found


def test_a_server_that_drafts_nothing_is_not_certified(server: Server, tmp_path: Path) -> None:
    flags = ["--pairs", "16", "-n", "4", "--on", '{"speculative": {"enabled": true}}', "--off", "{}"]
    with between(server, lambda body: body.update(speculative={"enabled": False})) as url:
        code, certificate = certified(tmp_path, url, *flags)
    assert (code, certificate["verdict"]) == (3, "inconclusive"), certificate
    assert certificate["server"]["tested"] is False, certificate


def test_a_server_that_was_asked_too_little_is_inconclusive(server: Server, tmp_path: Path) -> None:
    code, certificate = certified(tmp_path, server.url, "--pairs", "16", "-n", "4")
    assert (code, certificate["verdict"]) == (3, "inconclusive"), certificate
    assert certificate["server"]["ended"] == "pairs", certificate["server"]


# A test by chance: the faults are large and the search long, so that none of them passes on an unlucky day.
LONG_SEARCH = ["--power", "0.05", "--pairs", "2000"]


def test_a_server_that_forgets_penalties_fails(server: Server, tmp_path: Path) -> None:
    with between(server, lambda body: body.update(presence_penalty=0.0)) as url:
        code, certificate = certified(
            tmp_path, url, *LONG_SEARCH, "-n", "16", "--temp", "0.3", "--presence-penalty", "2"
        )
    assert (code, certificate["verdict"]) == (1, "failed"), certificate["server"]


def test_a_server_with_another_temperature_fails(server: Server, tmp_path: Path) -> None:
    with between(server, lambda body: body.update(temperature=0.1)) as url:
        code, certificate = certified(tmp_path, url, *LONG_SEARCH, "-n", "6", "--temp", "1")
    assert (code, certificate["verdict"]) == (1, "failed"), certificate["server"]
