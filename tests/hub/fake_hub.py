"""A model hub for the tests: it speaks the protocol of huggingface.co, and fails on demand.

Two servers, as there: the hub itself, and another host that it sends clients to for the content of large files. What
was asked of either is kept in `log`.
"""

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

CHUNK = 16 << 10


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repo:
    """A repository: its files, and what an attacker would list."""

    files: dict[str, bytes]
    commit: str = "c" * 40
    small: set[str] = field(default_factory=set)  # kept in git, not in large file storage
    gated: bool = False
    private: bool = False
    extra_entries: list[dict] = field(default_factory=list)  # listed as they are
    branch: str = "main"

    def entries(self) -> list[dict]:
        listed = []
        for path, content in sorted(self.files.items()):
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
            if path not in self.small:
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
            listed.append(entry)
        return [*listed, {"type": "directory", "path": "folder", "oid": "0" * 40}, *self.extra_entries]


@dataclass
class Faults:
    """What goes wrong. Counters run down, so that the next attempt may go well."""

    cut_after: int | None = None  # bytes of a body, then the connection is closed
    cuts: int = 1
    stall_after: int | None = None  # bytes of a body, then nothing more comes
    stalls: int = 1
    flip: int | None = None  # the byte that is sent wrong
    flips: int = 1
    statuses: list[tuple[int, dict]] = field(default_factory=list)  # answers of the storage host, one by one
    answer_statuses: list[tuple[int, dict]] = field(default_factory=list)  # the same of the hub's interface
    answer_cuts: int = 0  # answers of the hub's interface that end in the middle
    ignore_range: bool = False
    wrong_range: bool = False
    drip: float = 0.0  # seconds between chunks
    relative_redirect: bool = False
    page_len: int = 1000
    hold: threading.Event | None = None  # after half a body, waits for this
    held: threading.Event = field(default_factory=threading.Event)


class FakeHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.token = "hf_" + "t" * 34
        self.log: list[tuple[str, str, str, dict]] = []  # host, method, path, headers
        self.released = threading.Event()
        self.hub = self._serve("hub")
        self.storage = self._serve("storage")

    def _serve(self, host: str) -> ThreadingHTTPServer:
        handler = type("Handler", (_Handler,), {"fake": self, "host": host})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.hub.server_port}"

    @property
    def storage_endpoint(self) -> str:
        # Another host by name, on the same machine.
        return f"http://localhost:{self.storage.server_port}"

    def asked(self, host: str, method: str = "GET") -> list[tuple[str, dict]]:
        return [(path, headers) for at, verb, path, headers in self.log if (at, verb) == (host, method)]

    def close(self) -> None:
        self.released.set()
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeHub
    host: str

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        headers = {name.title(): value for name, value in self.headers.items()}
        self.fake.log.append((self.host, self.command, self.path, headers))
        try:
            if self.host == "storage":
                self._storage(body)
            else:
                self._hub(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, status: int, headers: dict, content: bytes, body: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _json(self, value: object, body: bool, headers: dict | None = None) -> None:
        content, faults = json.dumps(value).encode(), self.fake.faults
        if faults.answer_statuses:
            status, about = faults.answer_statuses.pop(0)
            return self._send(status, about, b"no", body)
        if faults.answer_cuts > 0:
            faults.answer_cuts -= 1
            self._send(200, {"Content-Length": len(content)}, content[: len(content) // 2], body)
            self.wfile.flush()
            self.close_connection = True
            return self.connection.close()
        self._send(200, {"Content-Type": "application/json", **(headers or {})}, content, body)

    def _error(self, status: int, code: str, body: bool, message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        self._send(status, headers, json.dumps({"error": message or code}).encode(), body)

    def _hub(self, body: bool) -> None:
        path, _, query = self.path.partition("?")
        path = unquote(path)
        name = re.match(r"^(?:/api/models)?/([^/]+/[^/]+)", path)
        repo = self.fake.repos.get(name[1]) if name else None
        authorized = self.headers.get("Authorization") == f"Bearer {self.fake.token}"
        if repo is None or (repo.private and not authorized):
            # As the hub does: what is hidden is not there.
            return self._error(401 if not authorized else 404, "RepoNotFound", body)
        if repo.gated and not authorized and "/resolve/" not in path and not path.endswith("/refs"):
            return self._error(401, "GatedRepo", body, "Access to this gated model is restricted.")
        rest = path.split(name[1], 1)[1]
        if path.startswith("/api/") and rest == "/refs":
            return self._json({"branches": [{"name": repo.branch, "targetCommit": repo.commit}]}, body)
        if path.startswith("/api/") and rest.startswith("/tree/"):
            return self._tree(repo, path, query, body)
        if path.startswith("/api/"):
            siblings = [{"rfilename": file} for file in sorted(repo.files)]
            return self._json({"id": name[1], "sha": repo.commit, "siblings": siblings, "gated": repo.gated}, body)
        if repo.gated and not authorized:
            return self._error(401, "GatedRepo", body)
        _, _, revision, file = rest.split("/", 3)
        if revision not in (repo.commit, repo.branch):
            return self._error(404, "RevisionNotFound", body)
        if file not in repo.files:
            return self._error(404, "EntryNotFound", body)
        self._resolve(name[1], repo, file, body)

    def _tree(self, repo: Repo, path: str, query: str, body: bool) -> None:
        entries, length = repo.entries(), self.fake.faults.page_len
        if not isinstance(entries, list):
            return self._json(entries, body)
        start = int((re.search(r"cursor=(\d+)", query) or [0, 0])[1])
        headers = {}
        if start + length < len(entries):
            url = f"{self.fake.endpoint}{path}?recursive=true&cursor={start + length}"
            headers["Link"] = f'<{url}>; rel="next"'
        self._json(entries[start : start + length], body, headers)

    def _resolve(self, name: str, repo: Repo, file: str, body: bool) -> None:
        content = repo.files[file]
        if file in repo.small:
            headers = {"ETag": f'"{git_sha1(content)}"', "X-Repo-Commit": repo.commit}
            return self._send(200, headers, content, body)
        headers = {
            "Location": f"{self.fake.storage_endpoint}/{name}/{quote(file)}?signed=yes",
            "X-Linked-Etag": f'"{sha256(content)}"',
            "X-Linked-Size": len(content),
            "X-Repo-Commit": repo.commit,
            "Accept-Ranges": "bytes",
        }
        self._send(302, headers, b"", body)

    def _storage(self, body: bool) -> None:
        faults = self.fake.faults
        _, user, model, file = unquote(self.path.partition("?")[0]).split("/", 3)
        content = self.fake.repos[f"{user}/{model}"].files[file]
        if body and faults.statuses:
            status, headers = faults.statuses.pop(0)
            return self._send(status, headers, b"no", body)
        start, size, status, headers = 0, len(content), 200, {"Accept-Ranges": "bytes", "ETag": '"elsewhere"'}
        wanted = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not faults.ignore_range:
            start = int(wanted[1])
            if start >= size:
                return self._send(416, {"Content-Range": f"bytes */{size}"}, b"", body)
            start = start - 1 if faults.wrong_range else start
            status, headers["Content-Range"] = 206, f"bytes {start}-{size - 1}/{size}"
        if faults.flip is not None and faults.flips > 0 and start <= faults.flip:
            faults.flips -= 1
            content = bytearray(content)
            content[faults.flip] ^= 1
            content = bytes(content)
        self.send_response(status)
        for name, value in {"Content-Length": size - start, **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if body:
            self._body(content, start)

    def _body(self, content: bytes, at: int) -> None:
        faults = self.fake.faults
        end, then = len(content), None
        if faults.cut_after is not None and faults.cuts > 0:
            faults.cuts -= 1
            end, then = min(at + faults.cut_after, end), "cut"
        elif faults.stall_after is not None and faults.stalls > 0:
            faults.stalls -= 1
            end, then = min(at + faults.stall_after, end), "stall"
        half = (at + end) // 2
        while at < end:
            upto = min(at + CHUNK, end)
            self.wfile.write(content[at:upto])
            if faults.hold is not None and at <= half < upto:
                self.wfile.flush()
                faults.held.set()
                faults.hold.wait(60)
            at = upto
            if faults.drip:
                time.sleep(faults.drip)
        self.wfile.flush()
        if then == "stall":
            self.fake.released.wait(60)
        if then and end < len(content):
            self.close_connection = True
            self.connection.close()
