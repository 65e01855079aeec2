"""Lends a small model the wit for a coding agent's task: each answer is held to the call that comes next.

The instructions of the agent are taken out of a request, since they are longer than the model's context, and the functions
are narrowed to one whose arguments are constants. After the last call the answer is one constant word. Requests that offer no
functions, such as those for a title, are only shortened.
"""

from typing import Any

import recorder

# A function and its arguments.
Call = tuple[str, dict[str, str]]

DONE = {"const": "Done."}


def constant(arguments: dict[str, str]) -> dict[str, Any]:
    """The schema of these arguments and no others."""
    properties = {name: {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}


def messages(body: dict[str, Any], calls: list[Call]) -> dict[str, Any]:
    """A request of the Messages API."""
    blocks = [block for it in body["messages"] if isinstance(it["content"], list) for block in it["content"]]
    step = sum(block["type"] == "tool_result" for block in blocks)
    turns = [it for it in body["messages"] if it["role"] != "system"]
    told = body | {"system": "Be brief.", "messages": turns, "max_tokens": 200, "tools": []}
    # Thoughts would be the model's own, and never end.
    told |= {"thinking": None, "output_config": None}
    if step >= len(calls) or not body.get("tools"):
        return told | {"output_config": {"format": {"type": "json_schema", "schema": DONE}}}
    name, arguments = calls[step]
    tool = {"name": name, "input_schema": constant(arguments)}
    choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
    return told | {"tools": [tool], "tool_choice": choice}


def responses(body: dict[str, Any], calls: list[Call]) -> dict[str, Any]:
    """A request of the Responses API."""
    step = sum(item.get("type") == "function_call_output" for item in body["input"])
    items = [item for item in body["input"] if item.get("role") != "developer"]
    told = body | {"instructions": None, "input": items, "max_output_tokens": 200, "tools": [], "tool_choice": "auto"}
    told |= {"reasoning": None}
    if step >= len(calls) or not body.get("tools"):
        return told | {"text": {"format": {"type": "json_schema", "name": "done", "schema": DONE}}}
    name, arguments = calls[step]
    tool = {"type": "function", "name": name, "parameters": constant(arguments)}
    return told | {"tools": [tool], "tool_choice": {"type": "function", "name": name}, "parallel_tool_calls": False}


def completions(body: dict[str, Any], calls: list[Call]) -> dict[str, Any]:
    """A request of chat completions."""
    step = sum(it["role"] == "tool" for it in body["messages"])
    turns = [it for it in body["messages"] if it["role"] != "system"]
    told = {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    told |= {"messages": turns, "max_tokens": 200}
    if step >= len(calls) or not body.get("tools"):
        return told | {"response_format": {"type": "json_schema", "json_schema": {"name": "done", "schema": DONE}}}
    name, arguments = calls[step]
    tool = {"type": "function", "function": {"name": name, "parameters": constant(arguments)}}
    choice = {"type": "function", "function": {"name": name}}
    return told | {"tools": [tool], "tool_choice": choice, "parallel_tool_calls": False}


def to(calls: list[Call]) -> recorder.Guide:
    """What guides an agent to these calls, one after the other."""
    apis = {"messages": messages, "responses": responses, "completions": completions}

    def change(path: str, body: dict[str, Any]) -> dict[str, Any]:
        api = apis.get(path.split("?")[0].rsplit("/", 1)[1])
        return api(body, calls) if api else body

    return change
