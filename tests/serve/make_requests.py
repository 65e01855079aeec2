#!/usr/bin/env python3
"""Write requests.jsonl: 200 greedy requests with penalties, biases, stop strings and lengths; always the same ones.

The prompts are those of bench/prompts. The first 40, which the short run takes, have short prompts and answers.
"""

import json
import random
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROMPTS = HERE.parent.parent / "bench" / "prompts"
COUNT, SHORT = 200, 40

# Ids of the target's vocabulary: " the", ".", " a", ",", "\n", " is", " of", " and", "The", " to", " in", ":", end.
COMMON = [260, 30, 253, 28, 198, 314, 282, 284, 504, 288, 281, 42, 2]
STOPS = [".", ",", "\n", " the", " and", ". The", " of the", "ing ", "\n\n", ":", "1", " is a", "e t", " return", "!"]


def prompts() -> list[str]:
    """Every prompt once, in a fixed order; what has a conversation before it is left out."""
    rows = [line for path in sorted(PROMPTS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    lines = map(json.loads, rows)
    return list(dict.fromkeys(line["prompt"] for line in lines if "prompt" in line))


def body(rng: random.Random, prompt: str, longest: int) -> dict[str, Any]:
    """A request that shapes its answer in one way or several."""
    said: dict[str, Any] = {"temperature": 0, "max_tokens": rng.randint(1, longest)}
    if rng.random() < 0.25:
        said["prompt"] = prompt
    else:
        said["messages"] = [{"role": "user", "content": prompt}]
    if rng.random() < 0.5:
        said["presence_penalty"] = rng.choice([-0.5, 0.3, 1.0, 2.0])
    if rng.random() < 0.5:
        said["frequency_penalty"] = rng.choice([-0.2, 0.2, 0.7, 2.0])
    if rng.random() < 0.5:
        said["repeat_penalty"] = rng.choice([1.05, 1.2, 1.8])
    if rng.random() < 0.4:
        said["repeat_last_n"] = rng.choice([-1, 4, 16, 256])
    if rng.random() < 0.6:
        stops = rng.sample(STOPS, rng.randint(1, 3))
        said["stop"] = stops[0] if len(stops) == 1 else stops
    if rng.random() < 0.5:
        tokens = rng.sample(COMMON, rng.randint(1, 4))
        said["logit_bias"] = {str(token): rng.choice([-100, -3, 1.5, 4]) for token in tokens}
    return said


def main() -> None:
    rng = random.Random(2026)
    everything = prompts()
    rng.shuffle(everything)
    short = [prompt for prompt in everything if len(prompt) <= 120]
    longer = [prompt for prompt in everything if len(prompt) <= 1200]
    with (HERE / "requests.jsonl").open("w") as out:
        for number in range(COUNT):
            among, longest = (short, 12) if number < SHORT else (longer, 64)
            said = body(rng, among[number % len(among)], longest)
            out.write(json.dumps(said, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
