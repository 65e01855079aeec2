"""Writes what transformers makes of the templates: `expected/*.txt`, for tests/chat.rs to compare with.

Run it here after `pip install jinja2==3.1.6`. The environment and variables are those of transformers
5.22 (`_cached_compile_jinja_template` and `render_jinja_template` in utils/chat_template_utils.py). The
chats are those of tests/chat.rs.
"""

import json
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
NAMED = HERE.parent.parent / "src" / "chat" / "templates"
NOW = datetime.fromtimestamp(1_709_200_983, timezone.utc)


class Generation(Extension):
    """`{% generation %}` blocks: a call block, as in transformers, whose indices nobody asks for."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def message(role, content, **extra):
    return {"role": role, "content": content, **extra}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather's <state> & “temperature”",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "at": {"type": "number"}}},
    },
}
CALL = {"id": "call00001", "function": {"name": "weather", "arguments": {"city": "Zürich", "at": 1.5}}}

# Name, messages, whether to add a generation prompt, other variables.
CHATS = [
    ("one", [message("user", "Hi!")], True, {}),
    (
        "turns",
        [
            message("system", " Be brief.\n"),
            message("user", "\n\tWhat's <b>5 & 6</b>? “é😀”\n"),
            message("assistant", "  11. \n"),
            message("user", "Thanks  "),
        ],
        True,
        {},
    ),
    ("closed", [message("user", "Hi!"), message("assistant", "Hello.")], False, {}),
    ("twice", [message("user", "Hi!"), message("user", "Hello?")], True, {}),
    (
        "tool",
        [
            message("user", "Is it warm?"),
            message("assistant", "", tool_calls=[CALL]),
            message("tool", "21 °C", name="weather", tool_call_id="call00001"),
        ],
        True,
        {"tools": [TOOL]},
    ),
]


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    (HERE / "expected").mkdir(exist_ok=True)
    for path in sorted([*HERE.glob("*.jinja"), *NAMED.glob("*.jinja")]):
        template = environment.from_string(path.read_text(encoding="utf-8"))
        sections = []
        for name, messages, add_generation_prompt, fields in CHATS:
            variables = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **fields}
            try:
                text = template.render(
                    messages=messages, add_generation_prompt=add_generation_prompt, **variables
                )
            except jinja2.exceptions.TemplateError as error:
                text = f"refused: {error}"
            sections.append(f"=== {name}\n{text}\n")
        (HERE / "expected" / f"{path.stem}.txt").write_text("".join(sections), encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
