"""The document at /openapi.json against the server: what it promises is what comes, whatever is sent."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CODER, FULL, MODELS, Server

CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance,content_type_conformance"


@pytest.fixture(scope="module")
def small(start: Callable[..., Server]) -> Server:
    """Little context, so that whatever is asked for ends soon."""
    return start("-c", "256", "--embedding-model", str(MODELS / "zoo/bert.gguf"))


@pytest.fixture(scope="module")
def coder(start: Callable[..., Server]) -> Server:
    """The same with a model that can fill gaps."""
    return start("-c", "256", "--spec-type", "ngram", target=CODER, drafter=None)


def test_the_document_names_every_endpoint(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    posts = {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"}
    posts |= {"/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/completion", "/infill"}
    posts |= {"/v1/embeddings", "/v1/rerank"}
    gets = {"/v1/models", "/v1/models/{model}", "/health", "/livez", "/metrics", "/v1/loads", "/version", "/props"}
    gets |= {"/slots"}
    assert set(document["paths"]) == posts | gets
    assert document["openapi"].startswith("3.")


def test_the_document_tells_of_keys(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]
    for path in ("/v1/models", "/props"):
        assert {"401", "4XX"} & set(document["paths"][path]["get"]["responses"]), path


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/infill", "/v1/messages", "/v1/responses"])
def test_the_document_tells_of_streams(server: Server, path: str) -> None:
    document = server.http.get("/openapi.json").json()
    assert "text/event-stream" in document["paths"][path]["post"]["responses"]["200"]["content"]


def test_the_examples_of_the_document_are_answered(small: Server, coder: Server) -> None:
    document = small.http.get("/openapi.json").json()
    bodies = {path: item["post"]["requestBody"]["content"]["application/json"] for path, item in document["paths"].items() if "post" in item}
    examples = {path: body["example"] for path, body in bodies.items() if "example" in body}
    assert {"/completion", "/infill"} <= set(examples)
    for path, example in examples.items():
        server = coder if path == "/infill" else small
        answer = server.http.post(path, json=example)
        assert answer.status_code == 200, f"{path}: {answer.text}"


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_generated_requests_get_what_the_document_promises(small: Server, tmp_path: Path, mode: str) -> None:
    generate(small, tmp_path, mode, {"--exclude-path": "/infill"})


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_generated_gaps_get_what_the_document_promises(coder: Server, tmp_path: Path, mode: str) -> None:
    generate(coder, tmp_path, mode, {"--include-path": "/infill"})


def generate(server: Server, folder: Path, mode: str, paths: dict[str, str]) -> None:
    """Sends generated requests, and checks every answer."""
    phases = "examples,coverage,fuzzing" if FULL else "examples,fuzzing"
    options: dict[str, Any] = paths | {
        "--checks": CHECKS,
        "--phases": phases,
        "--mode": mode,
        "--max-examples": 200 if FULL else 25,
        "--seed": 1,
        "--request-timeout": 60,
        "--generation-database": "none",
        "--suppress-health-check": "all",
    }
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--continue-on-failure"]
    command += [str(part) for option in options.items() for part in option]
    hooks = {"SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | hooks, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.is_healthy()
