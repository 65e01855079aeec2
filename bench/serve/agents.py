#!/usr/bin/env python3
"""Coding agents against the server: Claude Code, Codex and opencode, each asked to change one word of a file.

Each agent comes from npm, runs without a person in an empty folder with an empty home, and knows no address but the
server's. It runs twice:

* Guided: a model of 135 million parameters is held to the right calls. A proxy takes the long instructions out of each
  request and narrows the functions to one with constant arguments. Server, streams and agent are real; only the wit is lent.
  So every agent must come to its end, and edit the file.
* Free: a model of 1.5 billion parameters does what it can with the requests as they are. Every request must be answered.

What the agents sent, and what stopped them if something did, is in agents.md. The reduced requests of guided runs are written to
tests/serve/recorded, which CI replays.
"""

import argparse
import collections
import datetime
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import guide
import recorder
import server

GUIDED_MODEL, FREE_MODEL = "SmolLM2-135M-Instruct.Q8_0.gguf", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
GUIDED_MINUTES = 5.0
CONTEXT_LEN, OUTPUT_LEN_MAX = 32768, 1024
TASK = "In greeting.py, replace the word Hello by Goodbye. Change nothing else."
FILE = 'def greet(name):\n    print("Hello, " + name)\n'
CACHE = Path(os.environ.get("FORERUN_CACHE", "~/.cache/forerun")).expanduser()
REPORT = Path(__file__).with_name("agents.md")
RECORDED = server.REPOSITORY / "tests" / "serve" / "recorded"


@dataclass(frozen=True)
class Agent:
    """A coding agent: its package, and how it is told where the server is and what to do."""

    name: str
    package: str
    version: str
    binary: str
    # Its environment, and its arguments; it may write settings to its home and the folder.
    prepare: Callable[[str, Path, Path], tuple[dict[str, str], list[str]]]
    # The calls that do what is asked, where `FILE` stands for the file.
    calls: tuple[guide.Call, ...]

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def claude_code(url: str, _home: Path, _folder: Path) -> tuple[dict[str, str], list[str]]:
    environment = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "local",
        "ANTHROPIC_SMALL_FAST_MODEL": "local",
        "API_TIMEOUT_MS": "3600000",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(OUTPUT_LEN_MAX),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return environment, ["-p", TASK, "--permission-mode", "acceptEdits", "--tools", "Read,Edit,Write", "--max-turns", "8"]


def codex(url: str, home: Path, _folder: Path) -> tuple[dict[str, str], list[str]]:
    settings = f"""model = "local"
model_provider = "forerun"
model_context_window = {CONTEXT_LEN}

[model_providers.forerun]
name = "Forerun"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 3600000
"""
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(settings)
    return {}, ["exec", "--skip-git-repo-check", "--sandbox", "workspace-write", TASK]


def opencode(url: str, _home: Path, folder: Path) -> tuple[dict[str, str], list[str]]:
    model = {"name": "Local", "limit": {"context": CONTEXT_LEN, "output": OUTPUT_LEN_MAX}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Forerun",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none", "timeout": False},
        "models": {"local": model},
    }
    settings = {"provider": {"forerun": provider}, "autoupdate": False, "share": "disabled"}
    (folder / "opencode.json").write_text(json.dumps(settings))
    return {}, ["run", "--model", "forerun/local", TASK]


AGENTS = (
    Agent(
        "Claude Code", "@anthropic-ai/claude-code", "2.1.326", "claude", claude_code,
        (("Read", {"file_path": "FILE"}), ("Edit", {"file_path": "FILE", "old_string": "Hello", "new_string": "Goodbye"})),
    ),
    Agent(
        "Codex", "@openai/codex", "0.169.0", "codex", codex,
        (("exec_command", {"cmd": "cat greeting.py"}), ("exec_command", {"cmd": "sed -i s/Hello/Goodbye/ greeting.py"})),
    ),
    Agent(
        "opencode", "opencode-ai", "1.18.33", "opencode", opencode,
        (("read", {"filePath": "FILE"}), ("edit", {"filePath": "FILE", "oldString": "Hello", "newString": "Goodbye"})),
    ),
)


@dataclass
class Outcome:
    """How an agent fared."""

    agent: Agent
    exchanges: list[recorder.Exchange]
    code: int | None
    seconds: float
    file: str
    said: str

    @property
    def posts(self) -> list[recorder.Exchange]:
        return [exchange for exchange in self.exchanges if exchange.method == "POST"]

    @property
    def ended(self) -> str:
        if self.code is None:
            return "no, out of time"
        return "yes" if self.code == 0 else f"yes, exit code {self.code}"

    @property
    def edited(self) -> str:
        if self.file == FILE.replace("Hello", "Goodbye"):
            return "yes"
        return "no" if self.file == FILE else "otherwise than asked"


def install(agents: list[Agent]) -> Path:
    """The agents, in a folder of their own; those that are there are kept."""
    folder = CACHE / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{agent.package}@{agent.version}" for agent in agents]
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *names]
    subprocess.run(command, check=True)
    return folder / "node_modules" / ".bin"


def run(agent: Agent, binaries: Path, server_url: str, guided: bool, seconds_max: float) -> Outcome:
    """Lets an agent work on its task."""
    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "greeting.py")
        file.write_text(FILE)
        steps = [(name, {key: value.replace("FILE", str(file)) for key, value in call.items()}) for name, call in agent.calls]
        recording = recorder.Recorder(server_url, guide.to(steps) if guided else None)
        own, arguments = agent.prepare(recording.url, Path(home), Path(folder))
        environment = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "TERM": "dumb"} | own
        started = time.monotonic()
        command = [str(binaries / agent.binary), *arguments]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds_max
            )
            code, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            code, said = None, (late.stdout or b"") + (late.stderr or b"")
        seconds = time.monotonic() - started
        recording.close()
        text = said.decode(errors="replace").replace(folder, "FOLDER").replace(home, "HOME")
        return Outcome(agent, recording.exchanges, code, seconds, file.read_text(), text)


def calls_of(exchange: recorder.Exchange) -> list[str]:
    """The functions that an answer called."""
    names = []
    for event in exchange.events():
        block = event.get("content_block") or (event.get("item") if event.get("type") == "response.output_item.done" else {})
        if block and block.get("type") in ("tool_use", "function_call"):
            names.append(block["name"])
        for choice in event.get("choices") or []:
            names += [call["function"]["name"] for call in choice["delta"].get("tool_calls") or [] if call.get("id")]
    return names


def tokens_of(exchange: recorder.Exchange) -> int:
    """The prompt tokens that an answer reports."""
    found = 0
    for event in exchange.events():
        inner = event.get("message") or event.get("response") or {}
        usage = event.get("usage") or inner.get("usage") or {}
        cached = usage.get("cache_read_input_tokens") or 0
        found = max(found, usage.get("prompt_tokens") or (usage.get("input_tokens") or 0) + cached)
    return found


def section(outcome: Outcome, guided: bool) -> str:
    """What the report says of an agent; what a guided server answered is not what it would have."""
    paths = collections.Counter(f"`{it.method} {it.path.split('?')[0]}` → {it.status}" for it in outcome.exchanges)
    lines = [f"### {outcome.agent.title}", ""]
    lines += [f"* Requests: {', '.join(f'{path} ({count})' for path, count in paths.items())}."]
    fields = sorted({name for it in outcome.posts if isinstance(it.body, dict) for name in it.body})
    lines += [f"* Fields: {', '.join(f'`{name}`' for name in fields)}."]
    ignored = sorted({name for it in outcome.posts for name in it.ignored.split(", ") if name})
    if not guided:
        lines += [f"* Named in `forerun-ignored`: {', '.join(f'`{name}`' for name in ignored) or 'nothing'}."]
    tools = max((len(it.body.get("tools") or []) for it in outcome.posts if isinstance(it.body, dict)), default=0)
    tokens = [tokens for it in outcome.posts if (tokens := tokens_of(it))]
    span = f"{min(tokens):,} to {max(tokens):,}" if tokens else "unknown"
    lines += [f"* Tools: {tools}." + ("" if guided else f" Prompts: {span} tokens.")]
    calls = [name for it in outcome.posts for name in calls_of(it)]
    lines += [f"* Calls that the model made: {', '.join(calls) or 'none'}."]
    refused = [it for it in outcome.posts if it.status >= 400]
    lines += [f"* Refused: `{it.answer.decode(errors='replace')[:300]}`" for it in refused[:3]]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", outcome.said)
    last = [line.strip() for line in plain.splitlines() if line.strip()][-3:]
    return "\n".join([*lines, "* It said last:", "", "```text", *[line[:200] for line in last], "```", ""])


def table(outcomes: list[Outcome]) -> str:
    """How agents fared."""
    head = "| agent | requests | answered with 200 | ran to its end | edited the file as asked |\n|---|--:|--:|---|---|\n"
    rows = [
        f"| {it.agent.title} | {len(it.posts)} | {sum(post.status == 200 for post in it.posts)} | {it.ended} | {it.edited} |"
        for it in outcomes
    ]
    return head + "\n".join(rows)


def report(guided: list[Outcome], free: list[Outcome], minutes: float) -> str:
    """The report of all runs."""
    return f"""# Coding agents

Made by `just agents` on {datetime.date.today()}. Each agent was asked, in an empty folder: "{TASK}" Times are not given: this is
no measurement.

## Guided

`{GUIDED_MODEL}`, held to the right calls ([agents.py](agents.py) says how): what is shown is that server and agent understand each
other to the end, not that the model is able.

{table(guided)}

## Free

`{FREE_MODEL}` with the requests as they are, a context of {CONTEXT_LEN:,} tokens, and at most {minutes:.0f} minutes for each agent.

{table(free) if free else "Not run."}

## What they sent

{chr(10).join(section(it, not free) for it in free or guided)}"""


def serve_all(agents: list[Agent], model: str, guided: bool, minutes: float) -> list[Outcome]:
    """Runs agents one after the other against a server of this model."""
    binaries = install(agents)
    flags = {"-m": server.MODELS / model, "-c": 8192 if guided else CONTEXT_LEN, "-np": 2, "--timeout": 3600}
    command = [server.FORERUN, "serve", *(str(part) for flag in flags.items() for part in flag)]
    if guided:
        command += ["--chat-template-file", str(server.REPOSITORY / "tests" / "serve" / "thinking.jinja")]
    outcomes = []
    with tempfile.TemporaryDirectory() as logs:
        serving = server.Server("forerun", command, Path(logs, "serve.log"))
        try:
            serving.wait()
            for agent in agents:
                outcomes.append(run(agent, binaries, serving.url, guided, minutes * 60))
                print(section(outcomes[-1], guided), f"\nended: {outcomes[-1].ended}; edited: {outcomes[-1].edited}\n", flush=True)
        finally:
            serving.stop()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[agent.binary for agent in AGENTS], action="append", help="no report is written then")
    parser.add_argument("--guided", action="store_true", help="leave the free runs out")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each free run")
    arguments = parser.parse_args()
    agents = [agent for agent in AGENTS if not arguments.only or agent.binary in arguments.only]
    guided = serve_all(agents, GUIDED_MODEL, True, GUIDED_MINUTES)
    RECORDED.mkdir(exist_ok=True)
    for outcome in guided:
        recorder.write(RECORDED / f"{outcome.agent.binary}.json", outcome.agent.title, outcome.exchanges)
    free = [] if arguments.guided else serve_all(agents, FREE_MODEL, False, arguments.minutes)
    if not arguments.only:
        REPORT.write_text(report(guided, free, arguments.minutes))
    if any(post.status >= 400 for outcome in guided + free for post in outcome.posts):
        raise SystemExit("a request was refused: see the report")
    if any(outcome.edited != "yes" or outcome.code != 0 for outcome in guided):
        raise SystemExit("a guided agent did not do what it was asked: see the report")


if __name__ == "__main__":
    main()
