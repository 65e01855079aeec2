"""Frameworks that people write agents with, against the server: what they send and read is theirs, not ours.

The model is too small to be asked for wit: calls and forms are required, and what is asserted is that each
framework finds in the answer what it looks for.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from conftest import TARGET, Server
from pydantic import BaseModel, ConfigDict, Field

# Read when it is imported: prices of models, from the internet.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"

QUESTION = "What is the weather in Paris?"
DESCRIBE = "Ann is 31 years old and glad. Describe her as JSON."

# A thought and an answer, whatever the model is.
THOUGHT = {"grammar": 'start: "<think>\\nThe sky is clear.\\n</think>\\n\\nIt is blue."'}


class Person(BaseModel):
    """What a text says of somebody."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["glad", "sad"]


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]
    unit: Literal["celsius", "fahrenheit"]


def get_weather(city: Literal["Paris", "Rome"], unit: Literal["celsius", "fahrenheit"]) -> str:
    """The weather of a city."""
    return f"12 degrees {unit} in {city}."


class TestLangChain:
    """langchain-openai by both of OpenAI's APIs, and langchain-anthropic."""

    @pytest.fixture(params=["chat", "responses", "messages"])
    def make(self, request: pytest.FixtureRequest, server: Server, thinking: Server) -> Callable[..., Any]:
        def make(think: bool = False, **fields: Any) -> Any:
            url = (thinking if think else server).url
            common: dict[str, Any] = {"api_key": "none", "max_retries": 0, "max_tokens": 120, "model": "some-model"}
            if request.param == "messages":
                from langchain_anthropic import ChatAnthropic

                return ChatAnthropic(base_url=url, **(common | fields))
            from langchain_openai import ChatOpenAI

            responses = {"use_responses_api": True, "store": False} if request.param == "responses" else {}
            # It asks only OpenAI for the usage of a stream of its own accord.
            return ChatOpenAI(base_url=f"{url}/v1", temperature=0, stream_usage=True, **(common | responses | fields))

        make.api = request.param  # type: ignore[attr-defined]
        return make

    def test_a_chat_and_its_stream(self, make: Callable[..., Any]) -> None:
        model = make(max_tokens=12)
        answer = model.invoke([("system", "Be brief."), ("user", QUESTION)])
        assert answer.text and answer.usage_metadata["output_tokens"] == 12
        chunks = list(model.stream([("system", "Be brief."), ("user", QUESTION)]))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        assert len(chunks) > 2 and whole.text
        assert whole.usage_metadata["output_tokens"] == 12
        if make.api != "messages":  # type: ignore[attr-defined]
            assert whole.text == answer.text

    def test_functions_over_several_turns(self, make: Callable[..., Any]) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        model, messages = make(), [HumanMessage(QUESTION)]
        forced = "any" if make.api == "messages" else "required"  # type: ignore[attr-defined]
        for turn in range(2):
            calling = model.bind_tools([Weather], tool_choice=forced, parallel_tool_calls=False)
            answer = calling.invoke(messages) if turn == 0 else None
            for chunk in calling.stream(messages) if turn else []:
                answer = chunk if answer is None else answer + chunk
            call = answer.tool_calls[0]
            assert not answer.invalid_tool_calls and Weather(**call["args"])
            results = [ToolMessage(get_weather(**it["args"]), tool_call_id=it["id"]) for it in answer.tool_calls]
            messages += [answer, *results]
        assert model.bind_tools([Weather]).invoke([*messages, HumanMessage("Thank you.")]) is not None

    def test_an_answer_is_parsed(self, make: Callable[..., Any]) -> None:
        for method in ("json_schema", "function_calling"):
            parsed = make().with_structured_output(Person, method=method).invoke(DESCRIBE)
            assert isinstance(parsed, Person)

    def test_thoughts_are_apart_from_the_answer(self, make: Callable[..., Any]) -> None:
        if make.api == "messages":  # type: ignore[attr-defined]
            model = make(think=True, max_tokens=16, thinking={"type": "enabled", "budget_tokens": 1024})
        elif make.api == "responses":  # type: ignore[attr-defined]
            model = make(think=True, max_tokens=16, reasoning={"effort": "high"}, output_version="responses/v1")
        else:
            # This class reads no `reasoning_content`; what it gets is the answer alone.
            answer = make(think=True, extra_body=THOUGHT).invoke(QUESTION)
            assert answer.text == "It is blue."
            return
        answer = model.invoke(QUESTION)
        (block,) = answer.content_blocks
        assert block["type"] == "reasoning" and not answer.text
        # By responses, thoughts without an answer are not sent back.
        if make.api == "responses":  # type: ignore[attr-defined]
            return
        again = model.invoke([("user", QUESTION), answer, ("user", "Go on.")])
        asked = [it.usage_metadata["input_tokens"] for it in (answer, again)]
        assert asked[1] > asked[0] + 16, "the thoughts were sent back"


class TestLiteLLM:
    """The openai, vLLM and Anthropic providers of LiteLLM."""

    @pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
    def ask(self, request: pytest.FixtureRequest, server: Server, thinking: Server) -> Callable[..., Any]:
        import litellm

        def ask(think: bool = False, **fields: Any) -> Any:
            url = (thinking if think else server).url
            base = url if request.param == "anthropic" else f"{url}/v1"
            common: dict[str, Any] = {"api_base": base, "api_key": "none", "num_retries": 0, "max_tokens": 12}
            common["messages"] = [{"role": "user", "content": QUESTION}]
            return litellm.completion(model=f"{request.param}/some-model", **(common | fields))

        ask.provider = request.param  # type: ignore[attr-defined]
        return ask

    def test_a_chat_and_its_stream(self, ask: Callable[..., Any]) -> None:
        answer = ask(temperature=0)
        assert answer.choices[0].message.content and answer.usage.completion_tokens == 12
        assert answer.choices[0].finish_reason == "length"
        chunks = list(ask(temperature=0, stream=True, stream_options={"include_usage": True}))
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == answer.choices[0].message.content
        assert any(getattr(chunk, "usage", None) for chunk in chunks)

    def test_functions_over_several_turns(self, ask: Callable[..., Any]) -> None:
        parameters = Person.model_json_schema()
        tools = [{"type": "function", "function": {"name": "save", "description": "Saves.", "parameters": parameters}}]
        messages: list[Any] = [{"role": "user", "content": DESCRIBE}]
        forced = {"tool_choice": "required", "parallel_tool_calls": False}
        answer = ask(messages=messages, tools=tools, **forced, max_tokens=120)
        message = answer.choices[0].message
        assert message.tool_calls[0].function.name == "save"
        # The vLLM provider takes `additionalProperties` out of schemas, so anything may follow.
        if ask.provider != "hosted_vllm":  # type: ignore[attr-defined]
            Person.model_validate_json(message.tool_calls[0].function.arguments)
            assert answer.choices[0].finish_reason == "tool_calls"
        results = [{"role": "tool", "tool_call_id": it.id, "content": "Saved."} for it in message.tool_calls]
        later = ask(messages=[*messages, message.model_dump(), *results], tools=tools, max_tokens=4)
        assert later.usage.prompt_tokens > answer.usage.prompt_tokens

    def test_an_answer_is_held_to_a_schema(self, ask: Callable[..., Any]) -> None:
        messages = [{"role": "user", "content": DESCRIBE}]
        answer = ask(messages=messages, response_format=Person, max_tokens=120)
        Person.model_validate_json(answer.choices[0].message.content)

    def test_thoughts_are_apart_from_the_answer(self, ask: Callable[..., Any]) -> None:
        if ask.provider == "anthropic":  # type: ignore[attr-defined]
            enabled = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "allowed_openai_params": ["thinking"]}
            message = ask(think=True, **enabled).choices[0].message
            assert message.reasoning_content and not message.content
            return
        message = ask(think=True, extra_body=THOUGHT, max_tokens=40).choices[0].message
        assert (message.reasoning_content, message.content) == ("The sky is clear.", "It is blue.")
        question = {"role": "user", "content": QUESTION}
        usages = []
        for thought in (message.reasoning_content, None):
            history = [question, message.model_dump() | {"reasoning_content": thought}, question]
            usages.append(ask(think=True, messages=history, max_tokens=1).usage.prompt_tokens)
        assert usages[0] > usages[1], "the thoughts were sent back"

    def test_an_effort_is_taken(self, ask: Callable[..., Any]) -> None:
        # It is not known to take one: "some-model" is in no list.
        fields = {"reasoning_effort": "high", "allowed_openai_params": ["reasoning_effort"]}
        if ask.provider != "anthropic":  # type: ignore[attr-defined]
            message = ask(think=True, **fields).choices[0].message
            assert message.reasoning_content and not message.content


class TestAgents:
    """OpenAI's Agents SDK, by chat completions and, as it does by default, by responses."""

    @pytest.fixture(params=["chat", "responses"])
    def run(self, request: pytest.FixtureRequest, server: Server) -> Callable[..., Any]:
        import agents
        from openai import AsyncOpenAI

        def run(given: Any, **fields: Any) -> Any:
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
            kind = agents.OpenAIChatCompletionsModel if request.param == "chat" else agents.OpenAIResponsesModel
            settings = {"max_tokens": 120, "temperature": 0} | fields.pop("settings", {})
            agent = agents.Agent(
                name="Weather",
                instructions="Be brief.",
                model=kind(model="some-model", openai_client=client),
                model_settings=agents.ModelSettings(**settings),
                **fields,
            )
            return agents.Runner.run_sync(agent, given, max_turns=2)

        return run

    def test_a_run_with_a_function(self, run: Callable[..., Any]) -> None:
        import agents

        asked: list[str] = []

        def weather(city: Literal["Paris", "Rome"]) -> str:
            """The weather of a city."""
            asked.append(city)
            return f"12 degrees in {city}."

        tools = [agents.function_tool(weather)]
        required = {"tool_choice": "required", "parallel_tool_calls": False}
        done = run(QUESTION, tools=tools, tool_use_behavior="stop_on_first_tool", settings=required)
        assert asked and done.final_output == f"12 degrees in {asked[-1]}."
        later = run([*done.to_input_list(), {"role": "user", "content": "Thank you."}], settings={"max_tokens": 8})
        assert later.final_output

    def test_an_answer_has_its_type(self, run: Callable[..., Any]) -> None:
        assert isinstance(run(DESCRIBE, output_type=Person).final_output, Person)

    def test_a_call_or_an_answer_of_its_type(self, run: Callable[..., Any]) -> None:
        """A function that must be called, and a type for the answer after it, in one request."""
        import agents

        fields: dict[str, Any] = {"tools": [agents.function_tool(get_weather)], "output_type": Person}
        fields["tool_use_behavior"] = "stop_on_first_tool"
        one = {"parallel_tool_calls": False}
        forced = run(QUESTION, **fields, settings=one | {"tool_choice": "required"})
        assert "degrees" in str(forced.new_items[-1].output)
        done = run(DESCRIBE, **fields, settings=one)
        assert isinstance(done.final_output, Person) or "degrees" in str(done.new_items[-1].output)


class TestLlamaIndex:
    """LlamaIndex by its class for servers like OpenAI's."""

    @pytest.fixture
    def model(self, server: Server) -> Iterator[Any]:
        from llama_index.llms.openai_like import OpenAILike

        fields: dict[str, Any] = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 1024}
        yield OpenAILike(
            model=TARGET, api_base=f"{server.url}/v1", api_key="none", max_tokens=120, temperature=0, max_retries=0, **fields
        )

    def test_a_chat_and_its_stream(self, model: Any) -> None:
        from llama_index.core.llms import ChatMessage

        question = [ChatMessage(role="user", content=QUESTION)]
        answer = model.chat(question, max_tokens=12)
        *_, last = model.stream_chat(question, max_tokens=12)
        assert answer.message.content and last.message.content == answer.message.content

    def test_functions_over_several_turns(self, model: Any) -> None:
        from llama_index.core.llms import ChatMessage
        from llama_index.core.tools import FunctionTool

        tools = [FunctionTool.from_defaults(get_weather, fn_schema=Weather)]
        answer = model.chat_with_tools(tools, user_msg=QUESTION, tool_required=True)
        (call, *_) = model.get_tool_calls_from_response(answer)
        assert call.tool_name == "get_weather" and set(call.tool_kwargs) == {"city", "unit"}
        result = ChatMessage(role="tool", content="12 degrees.", additional_kwargs={"tool_call_id": call.tool_id})
        history = [ChatMessage(role="user", content=QUESTION), answer.message, result]
        assert model.chat_with_tools(tools, chat_history=history, max_tokens=8) is not None

    def test_an_answer_is_parsed(self, model: Any) -> None:
        from llama_index.core.prompts import PromptTemplate

        parsed = model.structured_predict(Person, PromptTemplate(DESCRIBE))
        assert isinstance(parsed, Person)
