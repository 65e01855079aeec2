"""A proxy that forwards requests to a server and keeps what was asked and how it was answered.

Recordings are reduced before they are written: long texts are cut, and what tells of the machine or of a person is
replaced. What an agent sends of its own accord (fields, tools, schemas, kinds of blocks) stays.
"""

import http.client
import http.server
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Most characters of a text that a recording keeps.
TEXT_MAX = 60
# Headers of a request that say what a client is and wants.
KEPT_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "content-type", "openai-beta", "originator")

_SECRETS = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"[0-9a-f]{32,}"), "0" * 32),
    (re.compile(r"(user|session|prj|ses|msg)_[0-9A-Za-z]{16,}"), r"\1_0"),
    (re.compile(r"\b20\d\d-\d\d-\d\d(T[0-9:.]+Z?)?"), "2026-01-01"),
    (re.compile(r"(?<![\w.~])(/[\w.@+-]+){2,}/?"), "/folder"),
]


@dataclass
class Exchange:
    """A request and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    ignored: str = ""
    seconds: float = 0.0
    answer: bytes = field(default=b"", repr=False)

    def events(self) -> list[dict[str, Any]]:
        """The objects of a stream's events."""
        lines = self.answer.decode(errors="replace").splitlines()
        texts = (line[6:] for line in lines if line.startswith("data: ") and line != "data: [DONE]")
        return [json.loads(text) for text in texts]

    def reduced(self) -> dict[str, Any]:
        """What a recording keeps."""
        headers = {name: value for name, value in sorted(self.headers.items()) if name in KEPT_HEADERS}
        return {"path": self.path, "headers": headers, "body": reduce(self.body)}


def reduce(value: Any) -> Any:
    """The same value with texts cut and nothing in it that tells of a machine or a person."""
    if isinstance(value, dict):
        return {name: reduce(item) for name, item in value.items()}
    if isinstance(value, list):
        return [reduce(item) for item in value]
    if not isinstance(value, str):
        return value
    for pattern, instead in _SECRETS:
        value = pattern.sub(instead, value)
    # JSON in a text, such as arguments of calls, stays JSON.
    if len(value) > TEXT_MAX and not value.startswith("{"):
        value = value[:TEXT_MAX].rstrip() + " …"
    return value


# Turns a path and the body of a request for it into the body that is sent on.
Guide = Callable[[str, dict[str, Any]], dict[str, Any]]


class Recorder:
    """The proxy, on a port of its own."""

    def __init__(self, server_url: str, guide: Guide | None = None) -> None:
        """Forwards to a server; `guide` may change a request on its way, after it was recorded."""
        self.exchanges: list[Exchange] = []
        recorder, server = self, urlsplit(server_url).netloc

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                exchange = Exchange(self.command, self.path, headers, json.loads(body) if body else None)
                recorder.exchanges.append(exchange)
                if guide and isinstance(exchange.body, dict):
                    body = json.dumps(guide(self.path, exchange.body)).encode()
                    headers["content-length"] = str(len(body))
                started = time.monotonic()
                upstream = http.client.HTTPConnection(server, timeout=3600)
                try:
                    passed = {name: value for name, value in headers.items() if name not in ("host", "connection")}
                    passed["accept-encoding"] = "identity"
                    upstream.request(self.command, self.path, body or None, passed)
                    self.answer(upstream.getresponse(), exchange)
                except OSError:
                    self.close_connection = True
                finally:
                    exchange.seconds = time.monotonic() - started
                    upstream.close()

            def answer(self, answer: http.client.HTTPResponse, exchange: Exchange) -> None:
                exchange.status = answer.status
                exchange.ignored = answer.getheader("forerun-ignored", "")
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "date"):
                        self.send_header(name, value)
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                while piece := answer.read1(65536):
                    exchange.answer += piece
                    self.wfile.write(piece)
                    self.wfile.flush()

            do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = forward

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def write(path: Path, client: str, exchanges: list[Exchange]) -> None:
    """Writes a client's requests, reduced."""
    posted = [exchange.reduced() for exchange in exchanges if exchange.method == "POST" and exchange.status == 200]
    text = json.dumps({"client": client, "requests": posted}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n")
