"""JavaScript's clients against the server: Anthropic's, OpenAI's by the Responses API, and Vercel's AI SDK."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Server

SCRIPT = Path(__file__).with_name("frameworks.mjs")

PLAIN = ["messages", "messagesTools", "messagesFormat", "responses", "vercel", "vercelTools", "vercelObject"]
THINKING = ["messagesThoughts", "vercelThoughts"]


def run(server: Server, node_modules: Path, name: str) -> None:
    command = ["node", str(SCRIPT), str(node_modules), server.url, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PLAIN)
def test_clients_are_served(server: Server, node_modules: Path, name: str) -> None:
    run(server, node_modules, name)


@pytest.mark.parametrize("name", THINKING)
def test_thoughts_are_apart_from_answers(thinking: Server, node_modules: Path, name: str) -> None:
    run(thinking, node_modules, name)
