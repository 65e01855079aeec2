"""A stream that broke off goes on elsewhere, from the tokens the client has."""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from conftest import DRAFTED, GOOD, HEAD, PLAIN, SEA, USELESS, Server

CHAT = "/v1/chat/completions"
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
COLOUR = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "dark": {"type": "boolean"}},
    "required": ["name", "dark"],
    "additionalProperties": False,
}
# What must survive: the state of each lies in the tokens so far.
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repeat_penalty": 1.2},
    "stop": {},  # What is said depends on the server: see `fields_of`.
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}},
    "tool": {"tools": [ADD], "tool_choice": "required"},
    "prediction": {"prediction": {"type": "content", "content": "The sea is a vast body of water."}},
}


def fields_of(server: Server, kind: str) -> dict[str, Any]:
    """What a request of a kind says. A stop string is what this seed says, over several tokens: its beginning is held
    back where a stream may break off."""
    if kind != "stop":
        return KINDS[kind]
    said = heard(server).text
    return {"stop": [said[len(said) // 2 :][:40]]}


def calls(pieces: list[dict[str, str]]) -> list[dict[str, str]]:
    """Calls in one piece each: arguments come as they are decoded, a round at a time."""
    whole: list[dict[str, str]] = []
    for piece in pieces:
        if whole and "name" not in piece:
            whole[-1] = {**whole[-1], "arguments": whole[-1]["arguments"] + piece["arguments"]}
        else:
            whole.append(piece)
    return whole


@dataclass
class Heard:
    """What a client has of an answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    finish: str | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            self.text += delta.get("content") or ""
            self.ids += choice.get("token_ids") or []
            self.calls = calls(self.calls + [call["function"] for call in delta.get("tool_calls") or []])
            self.finish = choice["finish_reason"] or self.finish


def chunks(server: Server, **fields: Any) -> Iterator[dict[str, Any]]:
    body = {"messages": SEA, "max_tokens": 32, "temperature": 1, "seed": 11, "speculative": DRAFTED}
    body |= {"stream": True, "return_token_ids": True} | fields
    with server.http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                yield chunk


def heard(server: Server, **fields: Any) -> Heard:
    """A whole answer."""
    whole = Heard()
    for chunk in chunks(server, **fields):
        whole.add(chunk)
    return whole


def prefixes(server: Server, **fields: Any) -> list[Heard]:
    """What a client has after each round of an answer, one by one."""
    found = [Heard()]
    for chunk in chunks(server, **fields):
        last = found[-1]
        found.append(Heard(last.text, [*last.ids], [*last.calls], last.finish))
        found[-1].add(chunk)
    return [it for it in found if it.ids and it.finish is None]


def joined(begun: Heard, rest: Heard) -> Heard:
    return Heard(begun.text + rest.text, begun.ids + rest.ids, calls(begun.calls + rest.calls), rest.finish)


@pytest.fixture(scope="module")
def other(start: Callable[..., Server]) -> Server:
    """A replica with another drafter."""
    return start(drafter=USELESS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_is_what_it_would_have_been(server: Server, other: Server, kind: str) -> None:
    fields = fields_of(server, kind)
    whole = heard(server, **fields)
    assert (whole.finish == "stop") >= (kind == "stop"), whole
    begun = prefixes(server, **fields)
    for have in [*begun[:: max(1, len(begun) // 4)], begun[-1]]:
        rest = heard(other, resume_token_ids=have.ids, **fields)
        assert joined(have, rest) == whole, f"after {len(have.ids)} tokens"
    plain = heard(other, resume_token_ids=begun[0].ids, **fields | {"speculative": PLAIN})
    assert joined(begun[0], plain) == whole


@pytest.mark.parametrize("drafter", [GOOD, HEAD])
def test_a_killed_replica_s_stream_goes_on_at_another(
    start: Callable[..., Server], other: Server, drafter: str
) -> None:
    fields = {"max_tokens": 64, "ignore_eos": True}
    whole = heard(other, **fields)
    doomed = start(drafter=drafter)
    have = Heard()
    with pytest.raises(httpx.TransportError):
        for chunk in chunks(doomed, **fields):
            have.add(chunk)
            if len(have.ids) > 10:
                doomed.send(signal.SIGKILL)
    assert 10 < len(have.ids) < 64
    rest = heard(other, resume_token_ids=have.ids, **fields)
    assert joined(have, rest) == whole and len(whole.ids) == 64
    # Started again, it has read nothing of what it resumes.
    again = start(drafter=drafter)
    assert joined(have, heard(again, resume_token_ids=have.ids, **fields)) == whole


@pytest.mark.parametrize("kind", ["text", "stop", "schema", "tool"])
def test_where_only_the_end_was_lost_only_the_end_is_said(server: Server, kind: str) -> None:
    fields = fields_of(server, kind)
    whole = heard(server, **fields)
    rest = heard(server, resume_token_ids=whole.ids, **fields)
    assert (rest.text, rest.ids, rest.calls, rest.finish) == ("", [], [], whole.finish)


def test_other_rules_go_on_too(server: Server) -> None:
    """By the same law, which crates/decode/tests/lossless.rs proves; the text is another."""
    fields = {"speculative": DRAFTED | {"rule": "block"}, "seed": None}
    have = prefixes(server, **fields)[3]
    rest = heard(server, resume_token_ids=have.ids, **fields)
    assert rest.finish in ("length", "stop") and len(have.ids + rest.ids) <= 32


def test_tokens_of_an_answer_are_named_as_vllm_does(server: Server) -> None:
    answer = server.chat(max_tokens=8, temperature=0, return_token_ids=True, logprobs=True)
    rendered = server.post("/apply-template", messages=SEA)["prompt"]
    tokens = server.post("/tokenize", content=rendered, add_special=True)["tokens"]
    assert answer["prompt_token_ids"] == tokens
    (choice,) = answer["choices"]
    assert server.post("/detokenize", tokens=choice["token_ids"])["content"] == choice["message"]["content"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 8
    first, *_ = chunks(server, max_tokens=2)
    assert first["prompt_token_ids"] == tokens
    (choice,) = server.complete(prompt="One, two,", max_tokens=4, return_token_ids=True)["choices"]
    assert choice["prompt_token_ids"] == server.post("/tokenize", content="One, two,", add_special=True)["tokens"]
    assert len(choice["token_ids"]) == 4
    assert "token_ids" not in server.complete(prompt="One, two,", max_tokens=4)["choices"][0]


def test_completions_count_on(server: Server) -> None:
    """Offsets of log-probabilities are those of the whole answer."""
    body = {"prompt": "The sea is", "max_tokens": 16, "seed": 3, "temperature": 1, "logprobs": 0}
    (whole,) = server.complete(**body, return_token_ids=True)["choices"]
    cut = 6
    resumed = body | {"stream": True, "resume_token_ids": whole["token_ids"][:cut]}
    offsets: list[int] = []
    with server.http.stream("POST", "/v1/completions", json=resumed) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    offsets += choice["logprobs"]["text_offset"]
    assert offsets == whole["logprobs"]["text_offset"][cut:]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"resume_token_ids": [1], "n": 2}, "one by one"),
        ({"resume_token_ids": [1], "stream": False}, "stream"),
        ({"resume_token_ids": [10**6]}, "out of range"),
        ({"resume_token_ids": [5] * 9, "max_tokens": 8}, "max_tokens"),
        ({"resume_token_ids": [2, 5]}, "ends with token"),
        ({"resume_token_ids": [5, 5], **KINDS["schema"]}, "form"),
    ],
)
def test_what_cannot_be_resumed_is_refused(server: Server, fields: dict[str, Any], says: str) -> None:
    response = server.http.post(CHAT, json={"messages": SEA, "stream": True} | fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "resume_token_ids" and says in error["message"], error
