#!/usr/bin/env python3
"""Writes docs/reference: a page for each command, from `forerun COMMAND --help`, and one for the server, from its /openapi.json.

FORERUN_BIN is the binary; FORERUN_MODELS the folder of `just models`, because a server needs a model to start. With --check it
changes nothing and fails if a page differs from what the binary says; CI runs it this way.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parent / "reference"
BINARY = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/debug/forerun")).expanduser()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MADE = "<!-- Written by docs/reference.py: run `just reference` after a change. -->"
ANY = "anything"
# Programs of their own, which are not built with this one, and the pages about them.
ELSEWHERE = {"distill": "../distill.md"}
# What is set on this machine would be shown in the help.
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "HOME": "/nowhere"}


def said(*words: str) -> str:
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def commands() -> dict[str, str]:
    """All commands and what each does, in the order of the help."""
    listed = said("--help").split("Commands:\n")[1].split("\n\n")[0]
    # A long description goes on in the next line.
    found = dict(re.findall(r"^  (\w+) +(.+)$", re.sub(r"\n {4,}", " ", listed), re.MULTILINE))
    return {name: about for name, about in found.items() if name != "help"}


def command_page(name: str, about: str) -> str:
    return f"{MADE}\n# forerun {name}\n\n{about}.\n\n```text\n{said(name, '--help')}\n```\n"


def index(found: dict[str, str]) -> str:
    rows = "\n".join(f"| [{name}]({ELSEWHERE.get(name, f'{name}.md')}) | {about} |" for name, about in found.items())
    about = "`forerun COMMAND --help` says the same, `forerun man` as manual pages. The server's endpoints and fields are in [api](api.md)."
    return f"{MADE}\n# Commands\n\n{about}\n\n| command | what it does |\n|---|---|\n{rows}\n"


def document() -> dict[str, Any]:
    """What the server says of itself."""
    command = [BINARY, "serve", "-m", MODELS / MODEL, "--port", "0", "-c", "256", "--log-format", "json"]
    server = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(server.stderr or [])
        address = next(found[1] for line in lines if (found := re.search(r'"address":"([^"]+)"', line)))
        with urllib.request.urlopen(f"http://{address}/openapi.json", timeout=60) as response:
            return json.load(response)
    except StopIteration:
        sys.exit(f"{BINARY} serve did not start with {MODELS / MODEL}: run `just models` first")
    finally:
        server.kill()
        server.wait()


def kind(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for word in ("oneOf", "anyOf", "allOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(kind(one) for one in schema[word]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    types = schema.get("type", ANY)
    shown = []
    for one in types if isinstance(types, list) else [types]:
        shown.append(f"list of {kind(schema.get('items', {}))}" if one == "array" else one)
    return " or ".join(shown)


def body(media: str, content: dict[str, Any]) -> str:
    """What a response holds."""
    named = kind(content["schema"]) if "schema" in content else ANY
    return f"`{media}`" if named == ANY else f"{named} (`{media}`)"


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """A table of the fields of an object, or what else it is."""
    if text := schema.get("description"):
        yield one_line(text) + "\n"
    parts = [schema, *schema.get("allOf", [])]
    properties = {name: field for part in parts for name, field in part.get("properties", {}).items()}
    if not properties:
        yield kind(schema) + "\n"
        return
    required = {name for part in parts for name in part.get("required", [])}
    yield "| field | type | meaning |\n|---|---|---|"
    for name, field in properties.items():
        must = " (required)" if name in required else ""
        yield f"| `{name}`{must} | {kind(field)} | {one_line(field.get('description', ''))} |"
    yield ""


def api_page(found: dict[str, Any]) -> str:
    out = [
        MADE,
        "# The server's API\n",
        "What `forerun serve` says of itself at `/openapi.json`. Paths below `/v1` are also served without it. "
        "[Serving](../serving.md) explains what the fields do.\n",
    ]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            out.append(f"## {method.upper()} {path}\n")
            out += [one_line(operation[name]) + "\n" for name in ("summary", "description") if operation.get(name)]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                out.append(f"Request: {kind(content['schema'])}\n")
            for status, response in operation["responses"].items():
                bodies = [body(media, content) for media, content in response.get("content", {}).items()]
                about = [one_line(response.get("description", "")), ", ".join(bodies)]
                out.append(f"* **{status}**: " + ": ".join(filter(None, about)))
            out.append("")
    out.append("## Types\n")
    for name, schema in sorted(found["components"]["schemas"].items()):
        out += [f"### {name}\n", *fields(schema)]
    return "\n".join(out).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something differs")
    check = parser.parse_args().check
    found = commands()
    wanted = {f"{name}.md": command_page(name, about) for name, about in found.items() if name not in ELSEWHERE}
    wanted |= {"index.md": index(found), "api.md": api_page(document())}
    there = {path.name: path.read_text() for path in REFERENCE.glob("*.md")}
    stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if check and stale:
        sys.exit(f"docs/reference: {', '.join(stale)} differ from what {BINARY} says; run `just reference`")
    for name in [] if check else stale:
        path = REFERENCE / name
        path.write_text(wanted[name]) if name in wanted else path.unlink()


if __name__ == "__main__":
    main()
