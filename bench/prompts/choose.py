#!/usr/bin/env python3
"""Make the prompt sets of this folder from the published benchmarks.

A set takes every k-th question of a task, from the first one on, with k as large as the wanted
count allows; nothing is picked by hand. The inputs are the files their authors publish, known by
their SHA-256. Prompts are taken as they are: no chat template, no instruction added, nothing cut.
"""

import argparse
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

INPUTS = {
    "spec_bench": "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    "human_eval": "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    "gsm8k": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
}
# Spec-Bench files its first task, multi-turn conversation, under MT-bench's eight categories.
MT_BENCH = {
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
}
# Ten of each of five tasks make the short set; 500 characters keep a prompt below 200 tokens.
SHORT_TASKS = ("mt_bench", "translation", "qa", "gsm8k", "human_eval")
SHORT_LEN_MAX = 500


class Prompt(NamedTuple):
    """One line of a set."""

    id: str
    task: str
    prompt: str


def read(path: Path, name: str) -> list[dict[str, Any]]:
    """The lines of one input, after checking that it is the expected file."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != INPUTS[name]:
        raise SystemExit(f"error: {path} has SHA-256 {found}; expected {INPUTS[name]} for {name}")
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    return [json.loads(line) for line in content.decode().split("\n") if line]


def spec_bench(path: Path) -> dict[str, list[Prompt]]:
    """The six tasks of Spec-Bench in their order; of a conversation, the first turn."""
    tasks: dict[str, list[Prompt]] = {}
    for line in read(path, "spec_bench"):
        task = "mt_bench" if line["category"] in MT_BENCH else line["category"]
        prompt = Prompt(f"spec_bench/{line['question_id']}", task, line["turns"][0])
        tasks.setdefault(task, []).append(prompt)
    return tasks


def human_eval(path: Path) -> list[Prompt]:
    """Function heads with their docstrings, to be completed as code."""
    lines = read(path, "human_eval")
    ids = [line["task_id"].removeprefix("HumanEval/") for line in lines]
    return [
        Prompt(f"human_eval/{id}", "human_eval", line["prompt"])
        for id, line in zip(ids, lines, strict=True)
    ]


def gsm8k(path: Path) -> list[Prompt]:
    """The questions of the test split, numbered from zero."""
    lines = enumerate(read(path, "gsm8k"))
    return [Prompt(f"gsm8k/{number}", "gsm8k", line["question"]) for number, line in lines]


def problems(path: Path) -> list[dict[str, str]]:
    """All questions of the test split with the number that answers them, without the solutions."""
    return [
        {"question": line["question"], "answer": line["answer"].split("####")[1].strip()}
        for line in read(path, "gsm8k")
    ]


def every(prompts: list[Prompt], count: int) -> list[Prompt]:
    """`count` prompts, each the k-th after the one before, from the first on."""
    k = len(prompts) // count
    return prompts[::k][:count]


def write(path: Path, prompts: list[Prompt]) -> None:
    write_lines(path, [prompt._asdict() for prompt in prompts])


def write_lines(path: Path, objects: list[dict[str, str]]) -> None:
    lines = [json.dumps(it, ensure_ascii=False) + "\n" for it in objects]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(objects)} prompts, {path.stat().st_size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spec_bench", type=Path, help="Spec-Bench: data/spec_bench/question.jsonl")
    parser.add_argument("human_eval", type=Path, help="human-eval: data/HumanEval.jsonl.gz")
    parser.add_argument("gsm8k", type=Path, help="grade-school-math: data/test.jsonl")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args()
    tasks = spec_bench(options.spec_bench)
    six = list(tasks)
    tasks["human_eval"] = human_eval(options.human_eval)
    tasks["gsm8k"] = gsm8k(options.gsm8k)

    write(options.out / "spec_bench.jsonl", [p for task in six for p in every(tasks[task], 8)])
    write(options.out / "human_eval.jsonl", every(tasks["human_eval"], 12))
    write(options.out / "gsm8k.jsonl", every(tasks["gsm8k"], 12))
    write_lines(options.out / "gsm8k_test.jsonl", problems(options.gsm8k))
    short = {
        task: [prompt for prompt in tasks[task] if len(prompt.prompt) <= SHORT_LEN_MAX]
        for task in SHORT_TASKS
    }
    write(options.out / "greedy_50.jsonl", [p for task in short for p in every(short[task], 10)])


if __name__ == "__main__":
    main()
