#!/usr/bin/env python3
"""Compare builds of the program on this processor, taking turns: writes builds.md.

Native (`cargo build --release`, for this processor alone), portable (`tools/package.sh portable`: the best of llama.cpp's
libraries is loaded at start) and static (`tools/package.sh static` for x86-64-v3). Each reads the same prompt and writes the
same number of tokens: one token a pass, five a pass (drafts of a fixed length, all of them verified), many a pass (the prompt).
"""

import argparse
import json
import os
import random
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
TARGET = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
PROMPT = " ".join(f"Line {number}: the quick brown fox jumps over the lazy dog." for number in range(24))
LEN = 48
RESAMPLES = 4000


def run(binary: Path, model: Path, drafts: int) -> dict[str, float]:
    """Seconds by what was done."""
    command = [str(binary), "generate", "-m", str(model), "-p", PROMPT, "-n", str(LEN), "--temp", "0", "--ignore-eos", "--json", "-q"]
    if drafts:
        # Tokens that the prompt suggests: how many are right does not change what a pass over them takes.
        command += ["--spec-type", "ngram-simple", "--spec-draft-n-max", str(drafts), "--spec-adaptive", "off"]
    told = json.loads(subprocess.check_output(command))
    rounds = told["speculative_decoding"]["rounds"]
    return {"prompt": told["timings"]["prompt_s"] / told["usage"]["prompt_tokens"], "pass": told["timings"]["target_s"] / rounds}


def interval(ratios: list[float]) -> str:
    """The mean of paired ratios with its 95 % interval by resampling."""
    chance = random.Random(1)
    mean = sum(ratios) / len(ratios)
    means = sorted(sum(chance.choices(ratios, k=len(ratios))) / len(ratios) for _ in range(RESAMPLES))
    return f"{mean:.3f} ({means[int(0.025 * RESAMPLES)]:.3f}–{means[int(0.975 * RESAMPLES)]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--native", type=Path, default=Path(TARGET) / "release/forerun")
    parser.add_argument("--portable", type=Path, default=next((ROOT / "dist").glob("forerun-*-gnu/bin/forerun"), None))
    parser.add_argument("--static", type=Path, default=Path(TARGET) / "static/release/forerun")
    parser.add_argument("--rounds", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--model", default="Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", help="default: %(default)s")
    given = parser.parse_args()
    builds = {name: getattr(given, name) for name in ("native", "portable", "static")}
    absent = [name for name, path in builds.items() if not (path and path.exists())]
    builds = {name: path for name, path in builds.items() if name not in absent}
    started = time.monotonic()
    found: dict[str, dict[str, list[float]]] = {name: {"one": [], "several": [], "prompt": []} for name in builds}
    for number in range(given.rounds):
        # Another begins each time.
        names = list(builds)[number % len(builds) :] + list(builds)[: number % len(builds)]
        for name in names:
            one, several = (run(builds[name], MODELS / given.model, drafts) for drafts in (0, 4))
            found[name]["one"].append(one["pass"])
            found[name]["several"].append(several["pass"])
            found[name]["prompt"].append((one["prompt"] + several["prompt"]) / 2)
        print(f"{number + 1} of {given.rounds}", flush=True)
    what = {"one": "one token a pass", "several": "drafts verified, up to five a pass", "prompt": "the prompt"}
    rows = [
        "| build | " + " | ".join(what.values()) + " |",
        "|---|" + "--:|" * len(what),
    ]
    for name in list(builds)[1:]:
        ratios = {key: [a / b for a, b in zip(found["native"][key], found[name][key], strict=True)] for key in what}
        rows.append(f"| {name} | " + " | ".join(interval(ratios[key]) for key in what) + " |")
    about = json.loads(subprocess.check_output([str(builds["native"]), "doctor", "--json"], text=True) or "{}")
    minutes = (time.monotonic() - started) / 60
    text = f"""# Builds: what a portable program costs on this processor

Made by `just builds` in {minutes:.0f} minutes. {given.model}, {LEN} tokens after a prompt, {given.rounds} rounds in which the builds take
turns. Speed as a share of the native build's, with 95 % intervals: 1 is as fast. Builds left out: {", ".join(absent) or "none"}.

Machine: {about["machine"]["processor"]}, {about["machine"]["threads"]} threads.

{chr(10).join(rows)}
"""
    (HERE / "builds.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
