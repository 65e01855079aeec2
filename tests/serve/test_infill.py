"""Gaps in texts, as llama.vim and llama.vscode have them filled, by a real model with tokens for it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from conftest import CODER, PLAIN, Server

HEADER = "int32_t llama_n_threads();\n"
PREFIX = '#include <cstdio>\n#include "llama.h"\n\nint main() {\n'
BEGUN = "    int n_threads = llama_"
SUFFIX = "}\n"
GAP = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": BEGUN, "n_predict": 16, "temperature": 0}

# What llama.vim sends beside the texts, word for word.
VIM = {
    "id_slot": 0,
    "n_predict": 128,
    "stop": [],
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached"],
}


@pytest.fixture(scope="module")
def coder(start: Callable[..., Server]) -> Server:
    return start("--spec-type", "ngram", target=CODER, drafter=None)


def by_hand(server: Server, *parts: str | list[str]) -> list[int]:
    """The tokens of a prompt; a list holds what is text, whatever it looks like."""
    tokens = []
    for part in parts:
        content, special = (part, True) if isinstance(part, str) else (part[0], False)
        tokens += server.post("/tokenize", content=content, parse_special=special)["tokens"]
    return tokens


def test_the_prompt_is_that_of_llama_server(coder: Server) -> None:
    files = [{"filename": "llama.h", "text": HEADER}, {"text": "<|fim_middle|>"}]
    filled = coder.post("/infill", input_extra=files, **GAP)
    start, name = "<|repo_name|>myproject\n<|file_sep|>", "<|file_sep|>filename\n"
    prompt = by_hand(
        coder, start, ["llama.h\n"], [HEADER], "<|file_sep|>", ["tmp\n"], ["<|fim_middle|>"], name,
        "<|fim_prefix|>", [PREFIX], BEGUN, "<|fim_suffix|>", [SUFFIX], "<|fim_middle|>",
    )  # fmt: skip
    completed = coder.post("/completion", prompt=prompt, n_predict=16, temperature=0)
    assert filled["tokens_evaluated"] == completed["tokens_evaluated"] == len(prompt)
    assert filled["content"] == completed["content"] != ""
    assert filled["prompt"] == completed["prompt"]
    # The text of a control token in a file is not that token.
    without = coder.post("/infill", input_extra=files[:1], **GAP)
    assert filled["tokens_evaluated"] - without["tokens_evaluated"] > len("<|fim_middle|>") / 2


def test_drafts_change_nothing(coder: Server) -> None:
    for sampling in ({"temperature": 0}, {"seed": 3, "temperature": 0.9}, {"seed": 4, **VIM, "n_predict": 40}):
        body = GAP | {"n_predict": 40} | sampling
        drafted = coder.post("/infill", **body)["content"]
        assert drafted == coder.post("/infill", **body, speculative=PLAIN)["content"], sampling


def test_a_stream_has_the_same_text(coder: Server) -> None:
    whole = coder.post("/infill", **GAP)
    with coder.http.stream("POST", "/infill", json=GAP | {"stream": True}) as response:
        parts = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert parts[-1]["stop"]


def test_llama_vim_is_served(coder: Server) -> None:
    extra = [{"text": HEADER * 20, "time": [123, 456], "filename": "src/llama.h"}]
    # It caches other files while nobody types.
    warm = {"input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "", "n_predict": 0}
    warm |= {"temperature": 0.0, "samplers": [], "t_max_predict_ms": 1, "response_fields": [""]}
    assert coder.post("/infill", **warm) == {}
    body = VIM | {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": BEGUN, "input_extra": extra}
    answer = coder.http.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    assert "forerun-ignored" not in answer.headers
    filled = answer.json()
    assert set(filled) == set(VIM["response_fields"])
    assert filled["tokens_cached"] > 300
    # Only what comes after the files was prefilled.
    assert filled["timings/prompt_n"] < 100


def test_a_model_without_the_tokens_says_so(server: Server) -> None:
    answer = server.http.post("/infill", json=GAP)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["type"] == "not_supported_error"
    assert error["message"].startswith("Infill is not supported by this model: prefix token is missing. suffix")


def test_what_is_missing_is_named(coder: Server) -> None:
    for field in ("input_prefix", "input_suffix"):
        answer = coder.http.post("/infill", json={name: value for name, value in GAP.items() if name != field})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_the_suffix_may_come_first(start: Callable[..., Server]) -> None:
    server = start("--spm-infill", target=CODER, drafter=None)
    prompt = server.post("/infill", **GAP)["prompt"]
    assert prompt.endswith(f"<|fim_suffix|>{SUFFIX}<|fim_prefix|>{PREFIX}{BEGUN}<|fim_middle|>")
