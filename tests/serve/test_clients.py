"""OpenAI's own clients against the server: what they send is understood, what comes back is what they expect."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from conftest import DRAFTED, SEA, TARGET, Server, wait_until
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

DRAFT = {"speculative": DRAFTED}

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 20},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {
                "type": "object",
                "properties": {"hours": {"type": "integer", "minimum": 0, "maximum": 23}},
                "required": ["hours"],
                "additionalProperties": False,
            },
        },
    },
]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]


class Person(BaseModel):
    """What a text says of somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["glad", "sad"]


PERSON: list[Any] = [{"role": "user", "content": "Ann is 31 years old and glad. Describe her as JSON."}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    """A short greedy answer, drafted, unless told otherwise."""
    defaults = {"model": TARGET, "messages": SEA, "max_tokens": 12, "temperature": 0, "extra_body": DRAFT}
    return client.chat.completions.create(**(defaults | fields))


def say(client: OpenAI, **fields: Any) -> str:
    return ask(client, **fields).choices[0].message.content


def test_a_chat_is_answered(client: OpenAI) -> None:
    answer = ask(client)
    assert (answer.object, answer.model) == ("chat.completion", TARGET)
    assert answer.id.startswith("chatcmpl-") and answer.created > 1_700_000_000
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant" and choice.message.tool_calls is None
    assert "sea" in choice.message.content.lower()
    usage = answer.usage
    assert usage.completion_tokens == 12 and usage.prompt_tokens > 10
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert answer.speculative["drafters"] == ["draft-model"] and answer.speculative["lossless"]
    assert answer.timings["draft_n"] >= answer.timings["draft_n_accepted"] > 0


def test_a_stream_says_the_same_as_a_whole_answer(client: OpenAI) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    *parts, last = chunks
    assert last.choices == [] and last.usage == whole.usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )
    assert all(part.usage is None for part in parts)
    assert parts[0].choices[0].delta.role == "assistant"
    assert len([part for part in parts if part.choices[0].delta.content]) > 1
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert [part.choices[0].finish_reason for part in parts if part.choices[0].finish_reason] == ["length"]
    assert parts[-1].choices[0].finish_reason == "length"


def test_a_stream_without_usage_says_none(client: OpenAI) -> None:
    chunks = list(ask(client, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_text_is_continued(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "max_tokens": 8, "temperature": 0, "extra_body": DRAFT}
    prompts = ["The capital of France is", "One, two, three,"]
    answer = client.completions.create(prompt=prompts, **fields)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "Paris" in answer.choices[0].text and "four" in answer.choices[1].text
    assert answer.usage.completion_tokens == 16
    for prompt, choice in zip(prompts, answer.choices):
        alone = client.completions.create(prompt=prompt, **fields)
        assert alone.choices[0].text == choice.text
        parts = client.completions.create(prompt=prompt, stream=True, **fields)
        assert "".join(part.choices[0].text for part in parts) == choice.text


def test_tokens_are_a_prompt_too(client: OpenAI, server: Server) -> None:
    text = "The capital of France is"
    tokens = server.post("/tokenize", content=text, add_special=True)["tokens"]
    fields: Any = {"model": TARGET, "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(prompt=text, **fields)
    by_tokens = client.completions.create(prompt=[tokens, tokens], **fields)
    assert {choice.text for choice in by_tokens.choices} == {by_text.choices[0].text}
    assert server.post("/detokenize", tokens=tokens)["content"].endswith(text)


def test_n_answers_differ_and_are_counted(client: OpenAI) -> None:
    answer = ask(client, n=3, temperature=1, seed=5)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 36
    assert answer.usage.prompt_tokens == ask(client).usage.prompt_tokens
    texts = ["", "", ""]
    for chunk in ask(client, n=3, temperature=1, seed=5, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_text_ends_before_a_stop_string(client: OpenAI) -> None:
    whole = say(client)
    words = whole.split()
    before = whole[: whole.index(words[4])]
    for stop in (words[4], [words[4]], ["unheard-of", words[4]]):
        choice = ask(client, stop=stop).choices[0]
        assert (choice.message.content, choice.finish_reason) == (before, "stop")
    # A stop string that spans tokens must not show through in a stream either.
    phrase = " ".join(words[4:7])
    parts = ask(client, stop=phrase, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == before


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_length_is_kept(client: OpenAI, name: str) -> None:
    for length in (1, 2, 5):
        # A draft of three must not go over it.
        answer = ask(client, **({"max_tokens": openai.omit} | {name: length}))
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (length, "length")


def test_a_seed_fixes_the_text(client: OpenAI) -> None:
    first = say(client, seed=7, temperature=1)
    assert say(client, seed=7, temperature=1) == first
    assert say(client, seed=8, temperature=1) != first


def test_a_token_can_be_banned_or_forced(client: OpenAI, server: Server) -> None:
    whole = ask(client, logprobs=True)
    first = whole.choices[0].logprobs.content[0].token
    (token,) = server.post("/tokenize", content=first)["tokens"]
    banned = ask(client, logit_bias={str(token): -100}, logprobs=True)
    assert first not in [said.token for said in banned.choices[0].logprobs.content]
    (forced,) = server.post("/tokenize", content=" fish")["tokens"]
    assert say(client, logit_bias={str(forced): 100}, max_tokens=4) == " fish" * 4


def test_log_probabilities_belong_to_the_text(client: OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=5).choices[0]
    said = choice.logprobs.content
    assert "".join(token.token for token in said) == choice.message.content
    assert b"".join(bytes(token.bytes) for token in said).decode() == choice.message.content
    for token in said:
        top = [other.logprob for other in token.top_logprobs]
        assert len(top) == 5 and top == sorted(top, reverse=True) and top[0] <= 0
        # The text is greedy, so each token is the likeliest.
        assert (token.token, token.logprob) == (token.top_logprobs[0].token, top[0])
    parts = ask(client, logprobs=True, top_logprobs=5, stream=True)
    streamed = [token for part in parts if part.choices[0].logprobs for token in part.choices[0].logprobs.content]
    assert streamed == said


def test_log_probabilities_of_completions_have_offsets(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "prompt": "Good morning, my", "max_tokens": 8, "temperature": 0, "logprobs": 2}
    choice = client.completions.create(**fields, extra_body=DRAFT).choices[0]
    said = choice.logprobs
    assert "".join(said.tokens) == choice.text
    assert said.text_offset == [sum(map(len, said.tokens[:n])) for n in range(8)]
    assert all(len(top) == 2 for top in said.top_logprobs)
    assert said.token_logprobs == [max(top.values()) for top in said.top_logprobs]


def test_offsets_are_the_same_in_a_stream(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "logprobs": 0}
    # " Paris." might be the beginning of this, and is held back.
    fields["stop"] = "s.\n\nThe cat"
    whole = client.completions.create(**fields).choices[0]
    assert whole.text.startswith(" Paris.\n\nThe ")
    parts = client.completions.create(**fields, stream=True)
    offsets = [offset for part in parts for offset in part.choices[0].logprobs.text_offset]
    assert offsets == whole.logprobs.text_offset


def test_all_likeliest_tokens_are_told_apart(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "prompt": "🦑🦑🦑🦑🦑🦑", "max_tokens": 3, "temperature": 0, "logprobs": 5}
    said = client.completions.create(**fields).choices[0].logprobs
    assert [len(top) for top in said.top_logprobs] == [5, 5, 5]


def test_penalties_drive_out_repetition(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "prompt": "row, row, row, row,", "max_tokens": 16, "temperature": 0}

    def rows(**penalty: Any) -> int:
        extra = DRAFT | {name: penalty.pop(name) for name in ["repeat_penalty"] if name in penalty}
        return client.completions.create(**fields, **penalty, extra_body=extra).choices[0].text.count("row")

    plain = rows()
    assert plain > 5
    for name in ("presence_penalty", "frequency_penalty", "repeat_penalty"):
        assert rows(**{name: 2}) < plain


def test_an_answer_can_be_held_to_json(client: OpenAI) -> None:
    def answered(wanted: str) -> Any:
        question = [{"role": "user", "content": f"Give me a JSON object with {wanted}."}]
        return ask(client, messages=question, max_tokens=200, response_format={"type": "json_object"}).choices[0]

    # So small a model does not always find an end.
    choices = map(answered, ("the name and age of a person", "the name of a colour", "a number", "one word"))
    choice = next(choice for choice in choices if choice.finish_reason == "stop")
    assert isinstance(json.loads(choice.message.content), dict)


def test_an_answer_can_be_held_to_a_schema(client: OpenAI) -> None:
    schema = Person.model_json_schema()
    named: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    text = say(client, messages=PERSON, max_tokens=80, response_format=named, temperature=1)
    Person.model_validate_json(text)


def test_the_client_parses_answers(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=TARGET, messages=PERSON, max_tokens=80, temperature=0, response_format=Person, extra_body=DRAFT
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Person)
    assert (parsed.name, parsed.age) == ("Ann", 31)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_functions_are_called(client: OpenAI, choice: Any) -> None:
    answer = ask(client, messages=WEATHER, tools=TOOLS, tool_choice=choice, max_tokens=80).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    (call,) = answer.message.tool_calls
    assert call.type == "function" and call.id
    arguments = json.loads(call.function.arguments)
    if choice == "required":
        assert (call.function.name, arguments["city"]) == ("get_weather", "Paris")
    else:
        assert call.function.name == "get_time" and 0 <= arguments["hours"] <= 23


class Place(BaseModel):
    """Where something is."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


class Leg(BaseModel):
    """A part of a trip, and what follows it."""

    model_config = ConfigDict(extra="forbid")
    to: Place
    then: "Leg | None" = None


def pydantic_tools() -> list[Any]:
    """Two functions whose parameters refer to parts of themselves, of equal names and different kinds."""

    class Weather(BaseModel):
        """The weather of a place."""

        model_config = ConfigDict(extra="forbid")
        place: Place

    class Trip(BaseModel):
        """A trip."""

        model_config = ConfigDict(extra="forbid")
        first: Leg

    other = Trip.model_json_schema()
    other["$defs"]["Place"] = {"enum": ["here", "there"]}
    return [openai.pydantic_function_tool(Weather), {"type": "function", "function": {"name": "Trip", "parameters": other}}]


@pytest.mark.parametrize("name", ["Weather", "Trip"])
def test_functions_by_pydantic_are_called(client: OpenAI, name: str) -> None:
    tools = pydantic_tools()
    assert all("$defs" in tool["function"]["parameters"] for tool in tools)
    for choice in ("required", {"type": "function", "function": {"name": name}}):
        # A trip may have ever more legs: one that ends is looked for.
        answers = (
            ask(client, messages=WEATHER, tools=tools, tool_choice=choice, max_tokens=120, temperature=1.5, seed=seed).choices[0]
            for seed in range(20)
        )
        answer = next(answer for answer in answers if answer.finish_reason != "length")
        (call,) = answer.message.tool_calls
        arguments = json.loads(call.function.arguments)
        if choice != "required":
            assert call.function.name == name
        if call.function.name == "Weather":
            Place.model_validate(arguments["place"])
        else:
            assert arguments["first"]["to"] in ("here", "there")


def test_references_that_lead_nowhere_are_refused(client: OpenAI) -> None:
    parameters = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Gone"}}}
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, tools=tools, tool_choice="required")
    assert refused.value.param == "tools" and "#/$defs/Gone" in refused.value.message


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_minus_one_is_no_limit(client: OpenAI, field: str) -> None:
    count: list[Any] = [{"role": "user", "content": "Count from 1 to 12, one number a line."}]
    fields: Any = {"model": TARGET, "messages": count, "temperature": 0, "stop": "7", field: -1}
    choice = client.chat.completions.create(**fields).choices[0]
    assert choice.finish_reason == "stop"
    text = client.completions.create(model=TARGET, prompt="1, 2, 3, 4, 5, 6, 7,", max_tokens=-1, stop="27", temperature=0)
    # Without the field there would be 16 tokens.
    assert text.usage and text.usage.completion_tokens > 20


def test_a_call_is_streamed_and_answered(client: OpenAI) -> None:
    fields: Any = {"model": TARGET, "temperature": 0, "max_tokens": 80, "tools": TOOLS}
    with client.chat.completions.stream(messages=WEATHER, tool_choice="required", **fields) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": "Rain, 12 degrees."}
    calls: Any = {"role": "assistant", "tool_calls": [call.model_dump(exclude={"index"})]}
    answer = client.chat.completions.create(messages=[*WEATHER, calls, told], **(fields | {"max_tokens": 24}))
    assert answer.choices[0].message.content


def test_answers_can_be_sent_back(client: OpenAI) -> None:
    message = ask(client).choices[0].message
    more: Any = {"role": "user", "content": "Go on."}
    assert say(client, messages=[*SEA, message, more], max_tokens=4)


def test_answers_can_be_sent_back_with_all_their_fields(client: OpenAI) -> None:
    """`model_dump()` writes fields of OpenAI's that are null here, and `parse` adds one of its own."""
    message = ask(client).choices[0].message.model_dump()
    more: Any = {"role": "user", "content": "Go on."}
    assert say(client, messages=[*SEA, message, more], max_tokens=4)


def test_a_prediction_is_accepted(client: OpenAI) -> None:
    whole = say(client, max_tokens=40)
    # Left to itself, the server drafts from it where that pays, by the clock.
    fields: Any = {"max_tokens": 40, "extra_body": {"speculative": {"drafter": "edit", "length": 8}}}
    answer = ask(client, prediction={"type": "content", "content": whole}, **fields)
    assert answer.choices[0].message.content == whole
    assert answer.speculative["drafters"] == ["edit"]
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens >= 20
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == 40
    fields["extra_body"] = {}
    wrong = ask(client, prediction={"type": "content", "content": "Nothing of the kind was ever said."}, **fields)
    assert wrong.choices[0].message.content == whole
    assert "edit" in wrong.speculative["drafters"]
    details = wrong.usage.completion_tokens_details
    assert details.accepted_prediction_tokens < 4 and details.rejected_prediction_tokens > 4


def test_models_are_listed(client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (TARGET, "model")
    assert client.models.retrieve(TARGET) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("unheard-of")


def test_names_with_slashes_are_found(start: Any) -> None:
    server = start("-a", "some/model", "--alias", "other", drafter=None)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["some/model", "other"]
    assert client.models.retrieve("some/model").id == "some/model"
    for name in ("some/model", "other"):
        assert ask(client, model=name, max_tokens=1, extra_body={}).model == name
    server.stop()


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"temperature": -1}, "temperature", "temperature"),
        ({"top_p": 1.5}, "top_p", "top_p"),
        ({"n": 17}, "n", "16"),
        ({"n": 0}, "n", "1"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens"),
        ({"max_tokens": -2}, "max_tokens", "-1 for no limit"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "expected 1 or more"),
        ({"extra_body": {"mirostat": 2}}, "mirostat", "temperature"),
        ({"extra_body": {"stop": 5}}, "stop", "expected a string or a list of strings"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"logit_bias": {"fish": 1}}, "logit_bias", "fish"),
        ({"logit_bias": {"4000000": 1}}, "logit_bias", "4000000"),
        pytest.param(
            {"logit_bias": {"5": 101}}, "logit_bias", "100"
        ),
        ({"stop": [""]}, "stop", "empty"),
        ({"messages": []}, "messages", "message"),
        ({"messages": [{"role": "user", "content": "sea " * 2000}]}, None, "context"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "x"),
        ({"extra_body": {"speculative": {"warmth": 1}}}, "speculative.warmth", "warmth"),
        pytest.param(
            {"extra_body": {"chat_template_kwargs": {"add_generation_prompt": False}}},
            "chat_template_kwargs",
            "add_generation_prompt"
        ),
        ({"extra_body": {"grammar": "start: ("}}, None, ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "x"}}}}, None, "x"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused(client: OpenAI, fields: Any, param: str | None, word: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **fields)
    assert refused.value.type == "invalid_request_error"
    assert word in refused.value.message
    if param:
        assert refused.value.param == param


def test_no_prompt_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=TARGET, prompt=[], max_tokens=1)


def test_what_is_ignored_is_named(client: OpenAI) -> None:
    fields = {"warmth": 1, "service_tier": "auto", "keep_alive": "5m", "store": True}
    raw = client.chat.completions.with_raw_response.create(
        model="gpt-4o", messages=SEA, max_tokens=2, extra_body=fields, extra_headers={"x-request-id": "abc-1"}
    )
    assert sorted(raw.headers["forerun-ignored"].split(", ")) == ["store", "warmth"]
    completion = raw.parse()
    assert completion.model == TARGET, "the model says its own name"
    assert completion._request_id == raw.headers["x-request-id"] == "abc-1"


def test_a_strict_server_rejects_what_it_does_not_have(start: Any) -> None:
    server = start("--strict", drafter=None)
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError) as unknown:
        ask(client, model="gpt-4o", extra_body={})
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, extra_body={"max_tokenz": 1})
    assert "did you mean `max_tokens`?" in refused.value.message


def test_thoughts_can_be_sent_back(client: OpenAI) -> None:
    thought = {"role": "assistant", "content": "Hi.", "reasoning_content": "The user greets me."}
    assert ask(client, messages=[*SEA, thought, *SEA], max_tokens=2).choices[0].message


def test_keys_are_asked_for(start: Any) -> None:
    server = start("--api-key", "first", "--api-key", "second", drafter=None)
    for key in ("first", "second"):
        client = OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
        assert ask(client, max_tokens=1, extra_body={}).choices
    for key in ("third", "firs", "first2", "FIRST"):
        client = OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
        with pytest.raises(openai.AuthenticationError) as refused:
            ask(client, max_tokens=1, extra_body={})
        assert refused.value.code == "invalid_api_key"
    server.stop()


def test_many_at_once_are_all_answered(server: Server, client: OpenAI) -> None:
    """Twice as many as there are slots; each gets the answer to its own question."""
    animals = ["cat", "dog", "fish", "horse", "bird", "snake", "whale", "frog"]

    async def all_answers() -> list[str]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(animal: str) -> str:
                question: Any = [{"role": "user", "content": f"Write one sentence about a {animal}."}]
                stream = await client.chat.completions.create(
                    model=TARGET, messages=question, max_tokens=12, temperature=0, stream=True, extra_body=DRAFT
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, animals))

    answers = asyncio.run(all_answers())
    for animal, answer in list(zip(animals, answers))[::3]:
        question: Any = [{"role": "user", "content": f"Write one sentence about a {animal}."}]
        assert say(client, messages=question) == answer
    wait_until(lambda: server.running() == server.waiting() == 0, 3, "nothing is left over")


@pytest.mark.parametrize("name", ["chat", "stream", "schema", "tools", "errors"])
def test_the_javascript_client_is_served(server: Server, node_modules: Path, name: str) -> None:
    script = Path(__file__).with_name("client.mjs")
    command = ["node", str(script), str(node_modules), f"{server.url}/v1", TARGET, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
