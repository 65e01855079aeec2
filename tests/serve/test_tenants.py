"""Tenants of the real server: names, limits, shares, caches, metrics and the audit log."""

import json
import statistics
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conftest import Server, wait_until
from openai import OpenAI

COMPLETIONS = "/v1/completions"
FILE = """
metrics-key = "operator-key"

[tenant.polite]
keys = ["polite-key", "polite-other"]

[tenant.hostile]
keys = ["hostile-key"]
sequences = 12

[tenant.slow]
keys = ["slow-key"]
requests-per-minute = 2

[tenant.short]
keys = ["short-key"]
tokens-per-minute = 40
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "tenants.toml").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def tenants(start: Callable[..., Server], files: Path) -> Server:
    flags = ("--tenants", str(files / "tenants.toml"), "--audit-log", str(files / "audit"))
    return start("-np", "2", *flags, drafter=None)


def of(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} | more


def complete(server: Server, key: str, request_id: str = "any", **body: Any) -> httpx.Response:
    fields = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0, "ignore_eos": True} | body
    return server.http.post(COMPLETIONS, json=fields, headers=of(key) | {"x-request-id": request_id})


def test_openais_client_is_told_of_its_limit(tenants: Server) -> None:
    client = OpenAI(base_url=tenants.url + "/v1", api_key="slow-key", max_retries=0)
    ask = {"model": "any", "prompt": "Once", "max_tokens": 2}
    raw = client.completions.with_raw_response.create(**ask)
    assert raw.headers["x-ratelimit-limit-requests"] == "2"
    assert raw.headers["x-ratelimit-remaining-requests"] == "1"
    client.completions.create(**ask)
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(**ask)
    assert refused.value.code == "rate_limit_exceeded" and refused.value.type == "requests"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 30
    assert complete(tenants, "polite-key").status_code == 200


def test_tokens_that_are_owed_are_paid_off_first(tenants: Server) -> None:
    first = complete(tenants, "short-key", max_tokens=100)
    assert first.status_code == 200 and first.headers["x-ratelimit-remaining-tokens"] == "0"
    refused = complete(tenants, "short-key")
    assert refused.status_code == 429 and refused.json()["error"]["type"] == "tokens"
    assert int(refused.headers["retry-after"]) > 60


def test_a_tenant_is_served_beside_one_that_floods(tenants: Server) -> None:
    body = {"prompt": "Write a long list of names:", "n": 4, "max_tokens": 300, "ignore_eos": True}
    refused: list[int] = []

    def flood() -> None:
        try:
            response = httpx.post(tenants.url + COMPLETIONS, json=body, headers=of("hostile-key"), timeout=20)
            refused.append(response.status_code)
        except httpx.TransportError:
            pass

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: refused.count(429) == 3, 30, "three of six requests of four are beyond twelve sequences")
    wait_until(lambda: tenants.running() == 2, 30, "the flood has both slots")
    answers = [complete(tenants, "polite-key", prompt=f"{turn}. There was a") for turn in range(3)]
    assert all(answer.status_code == 200 for answer in answers)
    # It had a slot at once, each time: the flood of minutes goes on.
    assert statistics.median(answer.elapsed.total_seconds() for answer in answers) < 10


def test_no_key_opens_the_metrics_but_the_operators(tenants: Server) -> None:
    public = tenants.http.get("/metrics").text
    assert "tenant" not in public
    assert "tenant=" not in tenants.http.get("/metrics", headers=of("polite-key")).text
    shown = tenants.http.get("/metrics", headers=of("operator-key")).text
    assert 'forerun:tenant_generation_tokens_total{tenant="polite"}' in shown
    assert shown.count("# EOF") == 1 and shown.endswith("# EOF\n")
    assert complete(tenants, "operator-key").status_code == 401


def test_every_request_is_in_the_audit_log_without_its_content(tenants: Server, files: Path) -> None:
    secret = "the harbour master's boat"
    complete(tenants, "polite-other", "audited", prompt=secret)
    complete(tenants, "no-such-key", "intruder", prompt=secret)

    def lines() -> dict[str, dict[str, Any]]:
        written = (files / "audit").read_text().splitlines()
        return {line["request_id"]: line for line in map(json.loads, written)}

    found = wait_until(lambda: {"audited", "intruder"} <= lines().keys() and lines(), 10, "both lines")
    audited, intruder = found["audited"], found["intruder"]
    assert (audited["tenant"], audited["status"], audited["outcome"]) == ("polite", 200, "finished")
    assert audited["completion_tokens"] == 4 and audited["prompt_tokens"] > 4
    assert audited["endpoint"] == COMPLETIONS and audited["time"].endswith("Z")
    assert (intruder["tenant"], intruder["status"], intruder["outcome"]) == (None, 401, "refused")
    text = (files / "audit").read_text()
    assert "harbour" not in text and "polite-other" not in text and "no-such-key" not in text
    assert (files / "audit").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no tenant"),
        ("[tenant.a]\nkeys = []", "tenant a has no key"),
        ("[tenant.a]\nkeys = ['x']\nslots = 2", "slots"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(files: Path, text: str, said: str) -> None:
    path = files / "wrong.toml"
    path.write_text(text)
    # The server says so before it loads anything.
    with pytest.raises(pytest.fail.Exception, match=said):
        Server("--tenants", str(path))
