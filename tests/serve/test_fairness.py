"""What clients do to each other: who waits for whom, and what the prefix cache tells of others."""

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from conftest import Server, wait_until

KEYS = ("polite", "hostile")
TURNS = 5

COMPLETIONS = "/v1/completions"
SECRET = "The password of the harbour master, which nobody else may ever learn, is the name of his boat. "


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
    body = {"prompt": f"{turn}. Once upon a time there was a", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    times = list(stream(server, "polite", body))
    return times[0], (times[-1] - times[0]) / (len(times) - 1)


def test_a_client_is_served_beside_one_that_sends_five_requests_of_sixteen(keyed: Server) -> None:
    idle = [figures(keyed, turn) for turn in range(TURNS)]
    body = {"prompt": "Write a long list of names:", "n": 16, "max_tokens": 400, "ignore_eos": True}

    def attack() -> None:
        try:
            httpx.post(keyed.url + COMPLETIONS, json=body, headers=of("hostile"), timeout=20)
        except httpx.TransportError:
            pass

    threads = [threading.Thread(target=attack, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    running = 'vllm:num_requests_running{model_name="%s"} 2' % keyed.http.get("/v1/models", headers=of("polite")).json()["data"][0]["id"]
    wait_until(lambda: running in keyed.http.get("/metrics").text, 30, "the other client has both slots")
    busy = [figures(keyed, turn) for turn in range(TURNS, 2 * TURNS)]
    assert any(thread.is_alive() for thread in threads), "the other client has given up"
    first, rate = (
        statistics.fmean(measured[part] for measured in busy) / statistics.fmean(measured[part] for measured in idle)
        for part in (0, 1)
    )
    print(f"first token {first:.2f} times its idle figure, each further token {rate:.2f} times")
    # Twice is the aim, and `just attack` measures it; other tests run beside this one. Who waits for the other client to end,
    # or to have had a turn of a second, waits more than twenty times as long.
    assert first < 8 and rate < 4, (idle, busy)


def cached(server: Server, key: str | None, **body: Any) -> int:
    fields = {"prompt": SECRET + "It is", "max_tokens": 1, "temperature": 0} | body
    response = server.http.post(COMPLETIONS, json=fields, headers=of(key) if key else {})
    assert response.status_code == 200, response.text
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture(scope="module")
def secrets(start: Callable[..., Server]) -> Server:
    return start("-np", "2", *(part for key in KEYS for part in ("--api-key", key)), drafter=None)


def test_no_key_learns_from_the_cache_what_another_sent(secrets: Server) -> None:
    for key in KEYS:
        assert cached(secrets, key) == 0
        # What a key left is its own to find.
        assert cached(secrets, key) > 10
    assert cached(secrets, KEYS[0]) > 10


def test_a_salt_parts_what_a_cache_shares(start: Callable[..., Server]) -> None:
    server = start("-np", "3", drafter=None)
    assert cached(server, None, cache_salt="one") == 0
    assert cached(server, None, cache_salt="one") > 10
    assert cached(server, None, cache_salt="two") == 0
    assert cached(server, None) == 0
    assert cached(server, None) > 10
    assert cached(server, None, cache_prompt=False) == 0
    assert cached(server, None, cache_prompt=True) > 10
    refused = server.http.post(COMPLETIONS, json={"prompt": "x", "cache_salt": ""})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt"
