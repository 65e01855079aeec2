#!/usr/bin/env python3
"""How fast one user's answers come: llama-server, llama-server with its best drafts, and Forerun.

All three serve the same model and answer the same prompts, one after the other, taking turns at
every prompt: edits of code, functions to write, and chat. No draft model is used. Greedy, so that
all have the same text to write; where rounding has made one write another, that is counted.

Writes answers.json and answers.md. LLAMA_SERVER names llama-server, FORERUN_BIN the command.
"""

import argparse
import json
import math
import random
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import server

MODEL = "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
CONTEXT_LEN = 2048
PROMPTS = server.REPOSITORY / "bench/prompts"
HERE = Path(__file__).resolve().parent
# Idle servers must not take time from the one that answers, and no prompt comes twice.
LLAMA = ("-c", str(CONTEXT_LEN), "-np", "1", "--poll", "0", "-cram", "0", "--no-webui")


def ngrams(kind: str, **sizes: int) -> tuple[str, ...]:
    """Flags of one of llama-server's n-gram drafters."""
    flags = ((f"--spec-{kind}-{name.replace('_', '-')}", str(size)) for name, size in sizes.items())
    return ("--spec-type", kind, *(word for flag in flags for word in flag))


# What it was fastest with on edits here, and what else was tried: `--tune` compares them.
LLAMA_DRAFTS = ngrams("ngram-simple", size_n=6, size_m=31)
TUNE = (
    LLAMA_DRAFTS,
    ngrams("ngram-simple", size_n=4, size_m=15),
    ngrams("ngram-simple", size_n=12, size_m=48),
    ngrams("ngram-map-k", size_n=6, size_m=31),
    ngrams("ngram-map-k", size_n=4, size_m=15),
    ngrams("ngram-mod", n_match=6, n_max=31),
)
TUNED_ON = 3
FORERUN = ("-c", str(CONTEXT_LEN), "-np", "1", "--spec-type", "suffix")
PLAIN, DRAFTS, OWN = "llama-server", "llama-server, n-gram drafts", "forerun"


@dataclass(frozen=True)
class Kind:
    """Prompts of one kind: where they are, how many, and how long their answers may be."""

    name: str
    file: str
    task: str
    count: int
    tokens_max: int
    asked: str = "{}"


CODE = "Write this Python function. Answer with the whole function in one code block.\n\n{}"
KINDS = (
    Kind("edits", "edit.jsonl", "edit", 10, 600),
    Kind("code", "human_eval.jsonl", "human_eval", 6, 256, CODE),
    Kind("chat", "spec_bench.jsonl", "mt_bench", 6, 128),
)


@dataclass(frozen=True)
class Answer:
    """What one server wrote for one prompt, and how long its user waited for the rest after the first token."""

    kind: str
    prompt: str
    way: str
    tokens: int
    seconds: float
    first_s: float
    text: str


def prompts(kind: Kind) -> list[tuple[str, str]]:
    """The first of a kind: id and message."""
    lines = [json.loads(line) for line in (PROMPTS / kind.file).read_text().splitlines()]
    chosen = [line for line in lines if line["task"] == kind.task][: kind.count]
    return [(line["id"], kind.asked.format(line["prompt"])) for line in chosen]


def ask(url: str, message: str, tokens_max: int) -> dict[str, Any]:
    """One answer, read as it comes."""
    body = {
        "messages": [{"role": "user", "content": message}],
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    started, first, last = time.perf_counter(), 0.0, 0.0
    text, usage = "", {}
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            part = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if part:
                last = time.perf_counter()
                first = first or last
                text += part
    # The first token came with the prompt.
    tokens = usage["completion_tokens"] - 1
    return {"tokens": tokens, "seconds": last - first, "first_s": first - started, "text": text}


def measure(limit_s: float) -> list[Answer]:
    """Every prompt by every server, kinds taking turns, until the time is up."""
    until = time.monotonic() + limit_s
    queue = [[(kind, *prompt) for prompt in prompts(kind)] for kind in KINDS]
    turns = range(max(map(len, queue)))
    jobs = [own[turn] for turn in turns for own in queue if turn < len(own)]
    answers: list[Answer] = []
    model = ("-m", str(server.MODELS / MODEL))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder)
        # One after the other: what a pass costs is measured at the start, and beside another's start it would be noise.
        commands = {
            OWN: server.forerun(*model, *FORERUN),
            PLAIN: [server.LLAMA_SERVER, *model, *LLAMA],
            DRAFTS: [server.LLAMA_SERVER, *model, *LLAMA, *LLAMA_DRAFTS],
        }
        servers: dict[str, server.Server] = {}
        try:
            for name, command in commands.items():
                servers[name] = server.Server(name, command, log / f"{len(servers)}.log")
                servers[name].wait()
                ask(servers[name].url, "Count to twenty.", 24)
            for number, (kind, name, message) in enumerate(jobs):
                if time.monotonic() > until:
                    print(f"the time is up after {number} of {len(jobs)} prompts", flush=True)
                    break
                ways = list(servers)
                for way in ways[number % 3 :] + ways[: number % 3]:
                    answer = ask(servers[way].url, message, kind.tokens_max)
                    answers.append(Answer(kind.name, name, way, **answer))
                    rate = answer["tokens"] / answer["seconds"]
                    print(f"{name}: {way}: {answer['tokens']} tokens, {rate:.1f} tokens/s", flush=True)
        finally:
            for one in servers.values():
                one.stop()
    return answers


def tune() -> None:
    """Compares llama-server's n-gram drafters on a few edits; prints their tokens a second."""
    model = ("-m", str(server.MODELS / MODEL))
    made: dict[tuple[str, ...], list[float]] = {flags: [0.0, 0.0] for flags in TUNE}
    with tempfile.TemporaryDirectory() as folder:
        started = [
            server.Server(" ".join(flags), [server.LLAMA_SERVER, *model, *LLAMA, *flags], Path(folder) / f"{number}.log")
            for number, flags in enumerate(TUNE)
        ]
        with server.serving(started):
            for _, message in prompts(KINDS[0])[:TUNED_ON]:
                for flags, one in zip(TUNE, started, strict=True):
                    answer = ask(one.url, message, KINDS[0].tokens_max)
                    made[flags][0] += answer["tokens"]
                    made[flags][1] += answer["seconds"]
                    print(f"{' '.join(flags)}: {answer['tokens'] / answer['seconds']:.1f} tokens/s", flush=True)
    for flags, (tokens, seconds) in sorted(made.items(), key=lambda it: it[1][1] / it[1][0]):
        print(f"{tokens / seconds:6.1f} tokens/s with {' '.join(flags)}")


def ratio(answers: list[Answer], kind: str, way: str, over: str) -> tuple[float, float, float, int]:
    """The geometric mean of what one way's rate is of another's, its 95 % interval over prompts, and their number."""
    rates: dict[str, dict[str, float]] = {}
    for it in answers:
        if it.kind == kind:
            rates.setdefault(it.prompt, {})[it.way] = it.tokens / it.seconds
    logs = [math.log(by[way] / by[over]) for by in rates.values() if way in by and over in by]
    draw = random.Random(1)
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(4000))
    mean = sum(logs) / len(logs)
    return math.exp(mean), math.exp(means[100]), math.exp(means[3899]), len(logs)


def rate(answers: list[Answer], kind: str, way: str) -> float:
    """Tokens a second of all answers of a kind together."""
    own = [it for it in answers if (it.kind, it.way) == (kind, way)]
    return sum(it.tokens for it in own) / sum(it.seconds for it in own)


def summary(answers: list[Answer]) -> list[dict[str, Any]]:
    """For each kind and way its rate, and what it is of llama-server's; Forerun's also of llama-server's with drafts."""
    cells = []
    for kind in KINDS:
        for way in (PLAIN, DRAFTS, OWN):
            cell: dict[str, Any] = {"kind": kind.name, "way": way, "rate": rate(answers, kind.name, way)}
            cell["speedup"] = ratio(answers, kind.name, way, PLAIN)
            if way == OWN:
                cell["over_drafts"] = ratio(answers, kind.name, way, DRAFTS)
            cells.append(cell)
    return cells


def differing(answers: list[Answer], kind: str, way: str) -> tuple[int, int]:
    """How many answers are not llama-server's own, and of how many."""
    plain = {it.prompt: it.text for it in answers if (it.kind, it.way) == (kind, PLAIN)}
    own = [it for it in answers if (it.kind, it.way) == (kind, way) and it.prompt in plain]
    return sum(it.text != plain[it.prompt] for it in own), len(own)


def shown(figure: tuple[float, float, float, int]) -> str:
    return f"{figure[0]:.2f} ({figure[1]:.2f}–{figure[2]:.2f})"


def table(report: dict[str, Any]) -> str:
    answers = [Answer(**it) for it in report["answers"]]
    about = report["about"]
    lines = [
        "# Answers by llama-server and Forerun\n",
        f"Made by `just answers`, {about['date']}, {about['minutes']:.0f} minutes on an idle machine "
        f"({about['machine']['processor']}, {about['machine']['threads']} threads). Model: {MODEL}, served by all. One user,"
        " greedy, no draft model; ways take turns at every prompt. Rates are after the first token; speedups are geometric"
        " means over prompts with their 95 % intervals. *differ*: answers that are not llama-server's own, by rounding.\n",
        f"* {PLAIN}: `llama-server {' '.join(LLAMA)}`",
        f"* {DRAFTS}: the same and `{' '.join(LLAMA_DRAFTS)}`",
        f"* {OWN}: `forerun serve {' '.join(FORERUN)}`\n",
        f"llama.cpp: {about['llama']}; Forerun: {about['commit']}.\n",
        "| kind | prompts | way | tokens/s | over llama-server | over its drafts | differ |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for cell in report["cells"]:
        over = shown(cell["over_drafts"]) if "over_drafts" in cell else ""
        differ = differing(answers, cell["kind"], cell["way"])
        speedup = "1" if cell["way"] == PLAIN else shown(cell["speedup"])
        lines.append(
            f"| {cell['kind']} | {cell['speedup'][3]} | {cell['way']} | {cell['rate']:.1f} | {speedup} | {over} |"
            f" {differ[0]} of {differ[1]} |"
        )
    lines += ["", "## By prompt, tokens a second", "", f"| prompt | {PLAIN} | {DRAFTS} | {OWN} |", "|---|--:|--:|--:|"]
    names = dict.fromkeys(it.prompt for it in answers)
    rates = {(it.prompt, it.way): it.tokens / it.seconds for it in answers}
    for name in names:
        cells = (rates.get((name, way)) for way in (PLAIN, DRAFTS, OWN))
        lines.append(f"| {name} | " + " | ".join("–" if it is None else f"{it:.1f}" for it in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="no prompt is begun after so long")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of the report")
    parser.add_argument("--tune", action="store_true", help="compare llama-server's n-gram drafters instead")
    given = parser.parse_args()
    if given.tune:
        return tune()
    started = time.monotonic()
    answers = measure(60 * given.minutes)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "minutes": (time.monotonic() - started) / 60,
        "machine": server.machine(),
        "llama": server.version(server.LLAMA_SERVER),
        "commit": server.commit(),
    }
    report = {"about": about, "cells": summary(answers), "answers": [asdict(it) for it in answers]}
    (given.out / "answers.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")
    (given.out / "answers.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
