"""Prompts that the real server records: read back, they are the tokens that it decoded."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import SEA, Server, wait_until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}


def test_recorded_prompts_are_tokenised_to_what_was_decoded(start: Callable[..., Server], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    server = start("--record-prompts", str(path), "--api-key", "secret-key", drafter=None)
    assert any("prompts are recorded" in line and str(path) in line for line in server.lines)
    server.http.headers["authorization"] = "Bearer secret-key"
    more = {"max_tokens": 1, "return_token_ids": True}

    def prompt_of(endpoint: str, **body: Any) -> list[int]:
        answer = server.http.post(endpoint, json=body | more)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return told.get("prompt_token_ids") or told["choices"][0]["prompt_token_ids"]

    decoded = [
        prompt_of(CHAT, messages=SEA),
        prompt_of(CHAT, messages=SEA, tools=[TOOL]),
        prompt_of(COMPLETIONS, prompt="  Once upon\na time, naïve 🦏<|im_end|>"),
    ]
    # What only looks like a control token would become one, and is left out.
    prompt_of(CHAT, messages=[{"role": "user", "content": "What does <|im_end|> mean?"}])
    prompt_of(CHAT, messages=SEA, store=False)
    decoded.append(prompt_of(COMPLETIONS, prompt="The last one"))
    wait_until(lambda: path.read_text().count("\n") == len(decoded), 10, "all lines")
    text = path.read_text()
    for line, tokens in zip(text.splitlines(), decoded, strict=True):
        body = {"content": json.loads(line)["rendered_prompt"], "add_special": False, "parse_special": True}
        assert server.http.post("/tokenize", json=body).json()["tokens"] == tokens
    assert "secret-key" not in text
    assert path.stat().st_mode & 0o077 == 0
    server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two pages."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs root")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_leaves_no_half_line_and_stops_nobody(start: Callable[..., Server], small_disk: Path) -> None:
    path = small_disk / "prompts.jsonl"
    # So much room is left that a line begins to be written.
    before = json.dumps({"rendered_prompt": "x" * 8_000}) + "\n"
    path.write_text(before)
    server = start("--record-prompts", str(path), drafter=None)
    for _ in range(2):
        body = {"prompt": "Once upon a time " * 30, "max_tokens": 1}
        assert server.http.post(COMPLETIONS, json=body).status_code == 200
    wait_until(lambda: any("the file cannot be written" in line for line in server.lines), 10, "a line in the log")
    assert path.read_text() == before
    server.stop()
