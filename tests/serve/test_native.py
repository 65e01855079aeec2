"""llama-server's own form of completions, as its clients send and read it, against a real model."""

import json
from typing import Any

import httpx
import pytest
from conftest import DRAFTED, PLAIN, TARGET, Server

STORY = "Once upon a time, there was a"


def native(server: Server, **fields: Any) -> dict[str, Any]:
    defaults = {"prompt": STORY, "n_predict": 16, "temperature": 0, "speculative": DRAFTED}
    return server.post("/completion", **(defaults | fields))


def streamed(server: Server, **fields: Any) -> list[dict[str, Any]]:
    body = {"prompt": STORY, "n_predict": 16, "temperature": 0, "stream": True} | fields
    with server.http.stream("POST", "/completion", json=body) as response:
        assert response.status_code == 200
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def test_a_completion_is_that_of_the_openai_endpoint(server: Server) -> None:
    answer = native(server, return_tokens=True)
    other = server.complete(prompt=STORY, max_tokens=16, temperature=0, return_token_ids=True)
    assert answer["content"] == other["choices"][0]["text"]
    assert answer["tokens"] == other["choices"][0]["token_ids"]
    assert answer["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "limit", False)
    assert answer["timings"]["draft_n"] > 0
    assert answer["timings"]["prompt_per_second"] > 0
    assert answer["model"] == TARGET
    assert answer["generation_settings"]["temperature"] == 0
    assert server.post("/completions", prompt=STORY, n_predict=16, temperature=0)["content"] == answer["content"]


def test_drafts_change_nothing(server: Server) -> None:
    seeded = {"seed": 11, "temperature": 0.9, "n_predict": 24}
    assert native(server, **seeded)["content"] == native(server, speculative=PLAIN, **seeded)["content"]


def test_a_stream_is_read_to_its_last_part(server: Server) -> None:
    parts = streamed(server)
    whole = native(server, return_tokens=True)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert [part["stop"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1]["tokens_predicted"] == 16


def test_prompts_are_tokens_and_texts(server: Server) -> None:
    tokens = server.post("/tokenize", content=STORY)["tokens"]
    whole = native(server)["content"]
    assert native(server, prompt=tokens)["content"] == whole
    texts = [server.post("/detokenize", tokens=[token])["content"] for token in tokens]
    assert native(server, prompt=[*tokens[:3], *texts[3:4], *tokens[4:]])["content"] == whole
    several = native(server, prompt=[STORY, tokens])
    assert [answer["content"] for answer in several] == [whole, whole]
    # Control tokens of a prompt are read as such, and written as they were sent.
    marked = native(server, prompt="<|im_start|>user\nHi<|im_end|>\n")
    assert marked["prompt"] == "<|im_start|>user\nHi<|im_end|>\n"
    assert marked["tokens_evaluated"] < 10


def test_a_prompt_is_cached_without_an_output(server: Server) -> None:
    prompt = "A long list of things that nobody has asked for yet: " + ", ".join(map(str, range(60)))
    warm = native(server, prompt=prompt, n_predict=0)
    assert (warm["content"], warm["tokens_predicted"]) == ("", 0)
    assert warm["timings"]["prompt_n"] > 60
    assert native(server, prompt=prompt)["timings"]["cache_n"] >= warm["tokens_evaluated"] - 1


def test_the_end_is_named(server: Server) -> None:
    whole = native(server)["content"]
    stop = whole[8:12]
    stopped = native(server, stop=[stop])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", stop)
    assert stopped["content"] == whole[: whole.index(stop)]
    grammar = native(server, grammar='root ::= "yes" | "no"')
    assert (grammar["content"] in ("yes", "no"), grammar["stop_type"]) == (True, "eos")


@pytest.mark.parametrize(
    ("field", "value"), [("mirostat", 2), ("samplers", ["temperature", "top_k"]), ("lora", [{"id": 0, "scale": 1}])]
)
def test_what_changes_the_output_is_refused_by_name(server: Server, field: str, value: Any) -> None:
    answer = server.http.post("/completion", json={"prompt": STORY, "n_predict": 4, field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_what_is_ignored_is_named(server: Server) -> None:
    fields = {"prompt": STORY, "n_predict": 2, "id_slot": 0, "cache_prompt": True, "sse_ping_interval": 5}
    answer: httpx.Response = server.http.post("/completion", json=fields)
    assert (answer.status_code, answer.headers["forerun-ignored"]) == (200, "sse_ping_interval")
