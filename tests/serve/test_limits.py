"""What clients that cost too much, do not read or do not go away can do, and that SIGTERM ends the server all the same."""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import SEA, Server, wait_until

CHAT = "/v1/chat/completions"
GRACE_S = 1
# What must be over: the time texts may go on, and five seconds.
END_S = GRACE_S + 5


def expensive(seed: int) -> dict[str, Any]:
    """A schema that is close to the limits, another one for each seed."""
    names = [f"s{seed}n{index}" for index in range(1000)]
    properties = {name: {"type": "integer"} for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def too_expensive() -> dict[str, Any]:
    return {"type": "object", "required": [f"name{index}" for index in range(20_000)]}


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": SEA, "max_tokens": 400, "ignore_eos": True} | fields


def held_to(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": SEA, "max_tokens": 8, "response_format": form} | fields


def raw(body: dict[str, Any], path: str = CHAT) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


def connect(server: Server, *, buffer: int | None = None) -> socket.socket:
    line = socket.socket()
    if buffer:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.settimeout(20)
    line.connect(("127.0.0.1", server.port))
    return line


def unread(server: Server, count: int) -> list[socket.socket]:
    """Clients that ask for much and read nothing."""
    lines = [connect(server, buffer=4096) for _ in range(count)]
    for line in lines:
        line.sendall(raw(asked(stream=True, logprobs=True, top_logprobs=20)))
    return lines


def metric(server: Server, name: str) -> float:
    values = server.metrics()
    return values[name] if name in values else values[f"{name}_total"]


def test_a_client_that_does_not_read_is_given_up() -> None:
    with Server("-np", "1", "-c", "2048", "--write-timeout", "1", drafter=None) as server:
        (line,) = unread(server, 1)
        wait_until(lambda: server.running() == 1, 20, "the sequence runs")
        started = time.monotonic()
        wait_until(lambda: server.running() == 0, 60, "the sequence is cancelled")
        assert metric(server, "vllm:generation_tokens") < 400, "it did not run to its end"
        assert metric(server, "forerun:requests_failed") == 1
        # The connection was reset, so that the system forgets what was not read.
        with pytest.raises(ConnectionResetError):
            while line.recv(65536):
                pass
        assert time.monotonic() - started < 60
        line.close()
        assert server.chat(max_tokens=1)["usage"]["completion_tokens"] == 1


def test_connections_are_limited_and_idle_ones_end() -> None:
    with Server("--max-connections", "3", "--read-timeout", "2", drafter=None) as server:
        server.http.close()
        with httpx.Client(base_url=server.url) as client:
            kept = [connect(server) for _ in range(2)]
            wait_until(lambda: client.get("/health").status_code == 200, 10, "room for a third connection")
            refused = wait_until(lambda: refusal(server), 10, "a connection is refused")
            assert refused["code"] == "too_many_connections"
            # Nothing was sent over these, and so they are closed after --read-timeout.
            for line in kept:
                assert line.recv(1) == b""
                line.close()
            assert httpx.get(server.url + "/health").status_code == 200


def refusal(server: Server) -> dict[str, Any] | None:
    with connect(server) as line:
        received = line.recv(65536)
    if not received.startswith(b"HTTP/1.1 503"):
        return None
    return json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]


def test_forms_are_compiled_once_and_limited(server: Server) -> None:
    queries, hits = "forerun:grammar_cache_queries", "forerun:grammar_cache_hits"
    seconds = "forerun:grammar_compilation_seconds_count"
    before = [metric(server, name) for name in (queries, hits, seconds)]
    choices = server.post(CHAT, **held_to(expensive(1), n=4))["choices"]
    assert len(choices) == 4
    server.post(CHAT, **held_to(expensive(1)))
    after = [metric(server, name) for name in (queries, hits, seconds)]
    assert [after[index] - before[index] for index in range(3)] == [2, 1, 1]

    started = time.monotonic()
    response = server.http.post(CHAT, json=held_to(too_expensive(), n=16))
    assert response.status_code == 400, response.text
    assert "20000 property names in an object, at most 1000" in response.json()["error"]["message"]
    assert time.monotonic() - started < 5


def storm(server: Server) -> list[Any]:
    """Clients whose schemas cost much, or more than is taken."""
    lines = [connect(server) for _ in range(30)]
    for seed, line in enumerate(lines):
        line.sendall(raw(held_to(expensive(100 + seed) if seed % 2 else too_expensive(), n=2)))
    wait_until(lambda: metric(server, "forerun:grammar_cache_queries") >= 1, 20, "one is compiled")
    return lines


def stalled(server: Server) -> list[Any]:
    lines = unread(server, 4)
    wait_until(lambda: server.running() == 2, 20, "sequences run")
    return lines


def half_sent(server: Server) -> list[Any]:
    lines = [connect(server) for _ in range(8)]
    for index, line in enumerate(lines):
        line.sendall(raw(asked())[: 40 + 30 * index])
    return lines


def idle(server: Server) -> list[Any]:
    clients = [httpx.Client(base_url=server.url) for _ in range(8)]
    for client in clients:
        assert client.get("/health").status_code == 200
    return [*clients, *(connect(server) for _ in range(8))]


def queued(server: Server) -> list[Any]:
    lines = [connect(server) for _ in range(20)]
    for line in lines:
        line.sendall(raw(asked(n=2)))
    wait_until(lambda: server.waiting() >= 4, 20, "the queue is full")
    return lines


@pytest.mark.parametrize("load", [storm, stalled, half_sent, idle, queued])
def test_sigterm_ends_the_server_in_time(load: Callable[[Server], list[Any]]) -> None:
    flags = ["-np", "2", "-c", "2048", "--max-queued-requests", "6", "--shutdown-timeout", str(GRACE_S)]
    with Server(*flags, drafter=None) as server:
        held = load(server)
        started = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.wait(60) == 0
        assert time.monotonic() - started < END_S, load.__name__
        for line in held:
            line.close()


def test_a_storm_of_schemas_leaves_others_their_answers() -> None:
    with Server("-np", "2", "--max-queued-requests", "40", drafter=None) as server:
        lines = storm(server)
        answers: list[dict[str, Any]] = []
        other = threading.Thread(target=lambda: answers.append(server.chat(max_tokens=4)))
        other.start()
        other.join(30)
        assert answers and answers[0]["usage"]["completion_tokens"] == 4
        compiled = "forerun:grammar_compilation_seconds_count"
        # Clients that leave take what waits with them.
        for line in lines:
            line.close()
        wait_until(lambda: server.running() == 0, 60, "nothing runs")
        first = metric(server, compiled)
        assert server.chat(max_tokens=4)["usage"]["completion_tokens"] == 4
        assert metric(server, compiled) <= first + 2


def arenas(server: Server) -> int:
    """The arenas of glibc's allocator beside the first: reservations of 64 MiB that begin at a multiple of that."""
    size, count, end = 64 << 20, 0, -1
    for line in Path(f"/proc/{server.process.pid}/maps").read_text().splitlines():
        span, mode, *rest = line.split()
        start, stop = (int(part, 16) for part in span.split("-"))
        if mode == "---p" and start == end and stop % size == 0:
            count += 1
        end = stop if mode == "rw-p" and start % size == 0 and len(rest) < 4 else -1
    return count


def test_threads_have_no_arenas_of_their_own(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> int:
        server = start("-np", "2")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: server.http.post(CHAT, json={"messages": SEA, "max_tokens": 2}), range(64)))
        return arenas(server)

    bounded = busy()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "64")
    # The test would see more of them.
    assert bounded <= 1 < busy()
