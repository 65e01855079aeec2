"""What `/slots` shows of a real server at work, and to whom."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Server, wait_until

SECRET = "Nobody else may read this: "


def busy(slots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [slot for slot in slots if slot["is_processing"]]


@pytest.fixture(scope="module")
def shared(start: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server with two tenants and two slots."""
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text('[tenant.alice]\nkeys = ["alice-key"]\n[tenant.bob]\nkeys = ["bob-key"]\n')
    return start("--tenants", str(file), "-np", "2")


def test_idle_slots_are_shown(server: Server) -> None:
    slots = server.http.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert {slot["n_ctx"] for slot in slots} == {1024}
    assert server.http.get("/slots?fail_on_no_slot=1").status_code == 200
    props = server.http.get("/props").json()
    assert (props["endpoint_slots"], props["total_slots"]) == (True, 4)


def test_a_tenant_sees_its_own_sequences_alone(shared: Server) -> None:
    body = {"prompt": SECRET, "n_predict": 400, "ignore_eos": True, "temperature": 0.25}
    stop = threading.Event()

    def ask(key: str) -> None:
        headers = {"x-api-key": key}
        with shared.http.stream("POST", "/completion", json=body | {"stream": True}, headers=headers) as answer:
            for _ in answer.iter_lines():
                if stop.is_set():
                    return

    threads = [threading.Thread(target=ask, args=(key,)) for key in ("alice-key", "bob-key")]
    for thread in threads:
        thread.start()
    try:
        for key in ("alice-key", "bob-key"):
            headers = {"x-api-key": key}
            slots = wait_until(
                lambda: (found := shared.http.get("/slots", headers=headers).json()) and len(busy(found)) == 2 and found,
                30,
                "two busy slots",
            )
            own = [slot for slot in busy(slots) if "id_task" in slot]
            assert len(own) == 1
            assert own[0]["params"]["temperature"] == 0.25
            assert own[0]["next_token"][0]["n_remain"] + own[0]["next_token"][0]["n_decoded"] == 400
            [other] = [slot for slot in slots if slot not in own]
            assert set(other) == {"id", "n_ctx", "speculative", "is_processing"}
            assert SECRET not in json.dumps(slots)
            full = shared.http.get("/slots?fail_on_no_slot=1", headers=headers)
            assert (full.status_code, full.json()["error"]["code"]) == (503, "no_slot")
        assert shared.http.get("/slots").status_code == 401
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_slots_may_be_kept_private(start: Callable[..., Server]) -> None:
    private = start("--no-slots", drafter=None)
    answer = private.http.get("/slots")
    assert answer.status_code == 501
    assert "--slots" in answer.json()["error"]["message"]
