"""What is asked of a text holds when it is drafted: forms, log-probabilities, penalties, biases, stop strings.

The target is a real model. With one drafter every text has cells of its own, and rows are the same to the last bit alone
and beside others, so that drafted and plain answers can be compared as they are.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import DRAFTED, FULL, PLAIN, Server


def described(**properties: Any) -> dict[str, Any]:
    """An object with all of these and nothing else."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


WORD = {"type": "string", "minLength": 1, "maxLength": 8}

SCHEMAS = {
    "object": described(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 150}),
    "enum": described(colour={"enum": ["red", "green", "blue"]}, size={"enum": [1, 2, 3]}, gone={"const": None}),
    "array": {"type": "array", "items": WORD, "minItems": 2, "maxItems": 3},
    "numbers": described(
        share={"type": "number", "minimum": -1, "maximum": 1},
        count={"type": "integer", "minimum": -20, "exclusiveMaximum": 1000},
        sure={"type": "boolean"},
    ),
    "nested": described(
        owner=described(name=WORD, pets={"type": "array", "items": described(kind={"enum": ["cat", "dog"]}), "maxItems": 1}),
        note={"type": ["string", "null"], "maxLength": 6},
    ),
    "pattern": described(
        code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        date={"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$"},
    ),
    "choice": {"anyOf": [described(yes={"type": "boolean"}), {"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]},
    "reference": {
        "$defs": {"point": described(x={"type": "integer", "minimum": 0, "maximum": 99}, y={"$ref": "#/$defs/small"}), "small": {"enum": [0, 1]}},
        "type": "array",
        "items": {"$ref": "#/$defs/point"},
        "minItems": 1,
        "maxItems": 2,
    },
    "optional": {"type": "object", "properties": {"a": {"enum": ["é", "日本"]}, "b": {"enum": ["🦑", '"\\']}}, "additionalProperties": False},
}


def together(server: Server, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers to all, as many at once as there are slots."""

    def one(body: dict[str, Any]) -> dict[str, Any]:
        return server.chat(**body) if "messages" in body else server.complete(**body)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, bodies))


def text_of(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_drafted_json_keeps_to_its_schema(server: Server, name: str) -> None:
    count = -(-(500 if FULL else 60) // len(SCHEMAS))
    schema = SCHEMAS[name]
    named = {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}
    question = [{"role": "user", "content": f"JSON, {name}:"}]
    body = {"messages": question, "response_format": named, "max_tokens": 300, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    rules = [{}, {"rule": "token"}, {"rule": "coupled"}]
    answers = together(server, [body | {"speculative": DRAFTED | rules[n % 3]} for n in range(count)])
    checker = jsonschema.Draft202012Validator(schema)
    for answer in answers:
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "stop", choice
        checker.validate(json.loads(text_of(choice)))
    assert sum(answer["timings"]["draft_n_accepted"] for answer in answers) > 0
    assert len({text_of(answer["choices"][0]) for answer in answers}) > 1


@pytest.mark.parametrize("rule", ["block", "token", "coupled"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_drafted_log_probabilities_are_those_of_plain_decoding(server: Server, rule: str, temperature: float) -> None:
    """Every token is scored again, alone and without drafts, by being forced: biases do not change what is reported."""
    prompt = server.post("/tokenize", content="The weather in the mountains is", add_special=True)["tokens"]
    length = 64 if FULL else 12
    speculative = DRAFTED | {"rule": rule, "trace": True}
    body = {"prompt": prompt, "max_tokens": length, "logprobs": 5, "temperature": temperature, "ignore_eos": True}
    answer = server.complete(**body, speculative=speculative)
    (choice,) = answer["choices"]
    tokens = [piece["token"] for piece in choice["speculative"]["pieces"]]
    assert len(tokens) == length and "accepted" in {piece["origin"] for piece in choice["speculative"]["pieces"]}
    one = {"max_tokens": 1, "logprobs": 5, "temperature": 0, "speculative": PLAIN}
    bodies = [one | {"prompt": prompt + tokens[:n], "logit_bias": {str(token): 100}} for n, token in enumerate(tokens)]
    largest = 0.0
    for n, scored in enumerate(together(server, bodies)):
        plain = scored["choices"][0]["logprobs"]
        assert plain["tokens"] == [choice["logprobs"]["tokens"][n]]
        drafted_top, plain_top = choice["logprobs"]["top_logprobs"][n], plain["top_logprobs"][0]
        assert drafted_top.keys() == plain_top.keys()
        pairs = [(drafted_top[token], plain_top[token]) for token in plain_top]
        pairs.append((choice["logprobs"]["token_logprobs"][n], plain["token_logprobs"][0]))
        largest = max(largest, *(abs(drafted - alone) for drafted, alone in pairs))
    print(f"rule {rule}, temperature {temperature}: the largest gap of {length} tokens is {largest:.1e}")
    assert largest < 1e-3


def test_shaped_answers_are_those_of_plain_decoding(server: Server) -> None:
    """Penalties, biases, stop strings and lengths, with drafts of every length from 1 to 8."""
    lines = Path(__file__).with_name("requests.jsonl").read_text().splitlines()
    assert len(lines) == 200
    bodies = [json.loads(line) for line in lines[: None if FULL else 40]]
    plain = together(server, [body | {"speculative": PLAIN} for body in bodies])
    drafted = together(server, [body | {"speculative": {"enabled": True, "length": 1 + n % 8}} for n, body in enumerate(bodies)])
    wrong = []
    for body, one, other in zip(bodies, plain, drafted):
        said, expected = other["choices"][0], one["choices"][0]
        same = text_of(said) == text_of(expected) and said["finish_reason"] == expected["finish_reason"]
        if not same or other["usage"]["completion_tokens"] != one["usage"]["completion_tokens"]:
            wrong.append((body, expected, one["usage"], said, other["usage"]))
    assert not wrong, f"{len(wrong)} of {len(bodies)} differ: {wrong}"
    # The recording is worth something only if it stops texts in both ways and drafts are accepted.
    assert {answer["choices"][0]["finish_reason"] for answer in drafted} == {"stop", "length"}
    assert sum(answer["timings"]["draft_n_accepted"] for answer in drafted) > len(bodies)
