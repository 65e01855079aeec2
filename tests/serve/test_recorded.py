"""What coding agents sent, replayed: every request is answered, and every stream is whole.

The requests in recorded/ were made by `just agents`: the agents' own, with long texts cut. bench/serve/agents.md says
how the agents fared.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server

FILES = sorted(Path(__file__).with_name("recorded").glob("*.json"))
# What the server does not honour of what each agent sends.
IGNORED = {"claude": {"context_management"}, "codex": {"tools[].type"}, "opencode": set()}
REQUESTS = [
    pytest.param(file.stem, request, id=f"{file.stem}-{index}")
    for file in FILES
    for index, request in enumerate(json.loads(file.read_text())["requests"])
]
LIMITS = {"messages": "max_tokens", "responses": "max_output_tokens", "completions": "max_tokens"}


@pytest.fixture(scope="module")
def roomy() -> Iterator[Server]:
    """A context that holds the schemas of all tools, and a template that knows functions."""
    template = Path(__file__).with_name("thinking.jinja")
    with Server("--chat-template-file", str(template), "-c", "8192", "-np", "1", "-t", "2", drafter=None) as running:
        yield running


def events_of(text: str) -> list[tuple[str | None, Any]]:
    """The events of a stream: their names, if they have any, and their objects."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def check_messages(events: list[tuple[str | None, Any]]) -> None:
    assert all(name == event["type"] for name, event in events)
    names = [name for name, _ in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    opened: list[int] = []
    for name, event in events:
        if name == "content_block_start":
            assert event["index"] == len(opened)
            opened.append(event["index"])
        elif name in ("content_block_delta", "content_block_stop"):
            assert event["index"] == opened[-1]
    assert names.count("content_block_start") == names.count("content_block_stop") > 0
    assert events[-2][1]["delta"]["stop_reason"] in ("end_turn", "max_tokens", "tool_use")


def check_responses(events: list[tuple[str | None, Any]]) -> None:
    assert all(name == event["type"] for name, event in events)
    assert [event["sequence_number"] for _, event in events] == list(range(len(events)))
    names = [name for name, _ in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] in ("response.completed", "response.incomplete")
    assert names.count("response.output_item.added") == names.count("response.output_item.done") > 0
    done = [event["item"] for name, event in events if name == "response.output_item.done"]
    assert events[-1][1]["response"]["output"] == done


def check_completions(events: list[tuple[str | None, Any]]) -> None:
    assert events[-1] == (None, "[DONE]")
    chunks = [event for _, event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] in ("stop", "length", "tool_calls")
    assert chunks[-1]["usage"]["completion_tokens"] > 0


CHECKS = {"messages": check_messages, "responses": check_responses, "completions": check_completions}


def test_every_agent_was_recorded() -> None:
    assert {file.stem for file in FILES} == set(IGNORED)
    for file in FILES:
        assert not re.search(r"/(root|home|tmp|Users)/", file.read_text()), file.name


@pytest.mark.parametrize(("agent", "recorded"), REQUESTS)
def test_a_recorded_request_is_answered(roomy: Server, agent: str, recorded: dict[str, Any]) -> None:
    path, body = recorded["path"], recorded["body"]
    kind = path.split("?")[0].rsplit("/", 1)[1]
    if kind in LIMITS:
        body = body | {LIMITS[kind]: 8}
    response = roomy.http.post(path, json=body, headers=recorded["headers"], timeout=300)
    assert response.status_code == 200, response.text
    named = response.headers.get("forerun-ignored", "").split(", ")
    assert {name for name in named if name} == IGNORED[agent]
    if kind == "count_tokens":
        assert response.json()["input_tokens"] > 0
    elif body.get("stream"):
        CHECKS[kind](events_of(response.text))
