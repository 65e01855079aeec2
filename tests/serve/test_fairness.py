"""What clients do to each other: who waits for whom."""

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from conftest import Server

KEYS = ("polite", "hostile")

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def keyed(start: Callable[..., Server]) -> Server:
    return start("-np", "2", *(part for key in KEYS for part in ("--api-key", key)), drafter=None)


def of(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def stream(server: Server, key: str, body: dict[str, Any]) -> Iterator[float]:
    """When each token came, from the request on."""
    started = time.monotonic()
    with server.http.stream("POST", COMPLETIONS, json=body | {"stream": True}, headers=of(key)) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                yield time.monotonic() - started


def figures(server: Server, turn: int) -> tuple[float, float]:
    """Seconds to the first token, and seconds of each after it."""
    body = {"prompt": f"{turn}. Once upon a time there was a", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    times = list(stream(server, "polite", body))
    return times[0], (times[-1] - times[0]) / (len(times) - 1)


def test_a_client_is_served_beside_one_that_sends_five_requests_of_sixteen(keyed: Server) -> None:
    idle = [figures(keyed, turn) for turn in range(3)]
    body = {"prompt": "Write a long list of names:", "n": 16, "max_tokens": 400, "ignore_eos": True}

    def attack() -> None:
        try:
            httpx.post(keyed.url + COMPLETIONS, json=body, headers=of("hostile"), timeout=20)
        except httpx.TransportError:
            pass

    threads = [threading.Thread(target=attack, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10
    while "vllm:num_requests_running{" not in (shown := keyed.http.get("/metrics").text) or ' 2\n' not in shown.split(
        "vllm:num_requests_running{"
    )[-1][:60]:
        assert time.monotonic() < deadline, "the other client has both slots"
        time.sleep(0.02)
    busy = [figures(keyed, turn) for turn in range(3, 6)]
    first, rate = (
        statistics.median(measured[part] for measured in busy) / statistics.median(measured[part] for measured in idle)
        for part in (0, 1)
    )
    print(f"first token {first:.2f} times its idle figure, each further token {rate:.2f} times")
    # Twice is the aim; the rest is for a machine that does other things as well.
    assert first < 4 and rate < 4, (idle, busy)
