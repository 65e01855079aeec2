"""Anthropic's own client against the server, and OpenAI's against its Responses API."""

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic
from conftest import DRAFTED, SEA, TARGET, Server
from openai import OpenAI

DRAFT = {"speculative": DRAFTED}

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}
FUNCTION: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture
def claude(server: Server) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_message_and_its_stream_are_the_same(claude: Anthropic) -> None:
    # This client sends no temperature of its own accord; older ones do.
    greedy = {"temperature": 0, **DRAFT}
    fields: Any = {"model": "claude-x", "messages": SEA, "max_tokens": 20, "extra_body": greedy}
    message = claude.messages.create(system="Be brief.", **fields)
    (block,) = message.content
    assert block.type == "text" and block.text
    assert (message.model, message.stop_reason) == (TARGET, "max_tokens")
    assert message.usage.output_tokens == 20
    with claude.messages.stream(system="Be brief.", **fields) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert final.content[0].text == block.text and final.stop_reason == "max_tokens"
    counted = claude.messages.count_tokens(model="claude-x", messages=SEA, system="Be brief.")
    used = message.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_tools_are_called_over_several_turns(claude: Anthropic) -> None:
    fields: Any = {"model": "claude-x", "max_tokens": 200, "tools": [TOOL], "extra_body": DRAFT}
    message = claude.messages.create(messages=WEATHER, tool_choice={"type": "any"}, **fields)
    call = next(block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use" and set(call.input) == {"city", "unit"}
    with claude.messages.stream(messages=WEATHER, tool_choice={"type": "tool", "name": "get_weather"}, **fields) as it:
        streamed = next(block for block in it.get_final_message().content if block.type == "tool_use")
    assert streamed.name == "get_weather" and streamed.input["unit"] in {"celsius", "fahrenheit"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    history = [*WEATHER, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(messages=history, **fields)
    assert answer.content and answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) > 50


def test_errors_are_those_that_the_client_knows(claude: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        claude.messages.create(model="x", messages=SEA, max_tokens=5, extra_body={"temperature": -1})
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    image: Any = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
    with pytest.raises(anthropic.BadRequestError) as unread:
        claude.messages.create(model="x", messages=[{"role": "user", "content": [image]}], max_tokens=5)
    assert "messages[0].content[0].type" in str(unread.value)


def test_keys_are_sent_as_this_client_does(start: Any) -> None:
    server = start("--api-key", "secret", drafter=None)
    with Anthropic(base_url=server.url, api_key="secret", max_retries=0) as known:
        assert known.messages.create(model="x", messages=SEA, max_tokens=1).content
    with Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as unknown, pytest.raises(
        anthropic.AuthenticationError
    ):
        unknown.messages.create(model="x", messages=SEA, max_tokens=1)


def test_a_response_and_its_stream_are_the_same(client: OpenAI) -> None:
    fields: Any = {
        "model": "gpt-x", "input": "Tell me about the sea.", "max_output_tokens": 20, "temperature": 0,
        "store": False, "extra_body": DRAFT,
    }
    response = client.responses.create(**fields)
    assert response.output_text and response.model == TARGET
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(stream=True, **fields))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == response.output_text
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == said
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_functions_and_formats_of_responses(client: OpenAI) -> None:
    fields: Any = {"model": "gpt-x", "max_output_tokens": 200, "store": False, "extra_body": DRAFT}
    response = client.responses.create(input=WEATHER, tools=[FUNCTION], tool_choice="required", **fields)
    call = next(item for item in response.output if item.type == "function_call")
    assert set(json.loads(call.arguments)) == {"city", "unit"}
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21 degrees"}
    answer = client.responses.create(input=[*WEATHER, *response.output, result], tools=[FUNCTION], **fields)
    assert answer.output
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"enum": [30, 31]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form: Any = {"format": {"type": "json_schema", "name": "person", "schema": person, "strict": True}}
    formed = client.responses.create(input="Ann is 31. Describe her.", text=form, **fields)
    assert json.loads(formed.output_text)["age"] in {30, 31}


def test_nothing_is_stored(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="x", input="a", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
