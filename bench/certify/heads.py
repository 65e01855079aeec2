#!/usr/bin/env python3
"""Certify decoding with every kind of draft head, at two temperatures, and break it on purpose: writes heads.md.

The weights of the zoo are random: they show that the output is the target's whatever a head says, not how good heads are.
Fails if a certificate is not what it should be.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BINARY = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/release/forerun")).expanduser()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
TRAINED = ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.eagle3.gguf")


class Run(NamedTuple):
    what: str
    target: str
    head: str | None
    temperature: float
    broken: str | None = None


HEADS = [
    ("MTP, one block (`glm4moe`)", "zoo/glm4moe-mtp.gguf", None),
    ("MTP of a hybrid (`qwen35`)", "zoo/qwen35-mtp.gguf", None),
    ("MTP, two blocks in turn (`step35`)", "zoo/step35-mtp.gguf", None),
    ("DFlash, refined (`llama`)", "zoo/llama.gguf", "zoo/llama-dflash.gguf"),
]
RUNS = [Run(*head, temperature) for head in HEADS for temperature in (1.0, 0.7)] + [
    Run("EAGLE-3, trained, broken: `token-residual`", *TRAINED, 1.0, "token-residual"),
    Run("EAGLE-3, trained, broken: `argmax`", *TRAINED, 1.0, "argmax"),
]


def certify(run: Run, limit: str, power: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "certificate.html"
        command = [str(BINARY), "certify", str(MODELS / run.target), "--temp", str(run.temperature)]
        command += ["--top-k", "0", "--top-p", "1", "--min-p", "0"]
        command += ["--out", str(out), "--time-limit", limit]
        command += ["-md", str(MODELS / run.head)] if run.head else []
        command += ["--broken", run.broken] if run.broken else ["--power", str(power)]
        done = subprocess.run(command, capture_output=True, text=True)
        if not out.with_suffix(".json").exists():
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return json.loads(out.with_suffix(".json").read_text())


def row(run: Run, found: dict) -> str:
    decoder = found["decoder"]
    smallest = decoder["smallest_difference"]
    finds = "–" if smallest is None else f"{100 * smallest:.0f} %"
    cells = [run.what, f"{run.temperature}", f"{decoder['tokens']:,}", f"{decoder['drafted']:,}", f"{decoder['accepted']:,}"]
    evidence = max(decoder["law_evidence"], decoder["pair_evidence"])
    return "| " + " | ".join([*cells, f"{evidence:+.1f}", finds, f"**{found['verdict']}**"]) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", default="5m", help="of one certificate; default: %(default)s")
    parser.add_argument("--power", type=float, default=0.2, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=HERE / "heads.md")
    parser.add_argument("--again", help="only heads with this in their name; other rows of the report stay")
    given = parser.parse_args()
    kept = given.out.read_text().splitlines() if given.again else []
    started, rows, wrong = time.monotonic(), [], []
    for number, run in enumerate(RUNS, 1):
        if given.again and given.again not in f"{run.what} at {run.temperature}":
            rows += [line for line in kept if line.startswith(f"| {run.what} | {run.temperature} |")]
            continue
        print(f"{number} of {len(RUNS)}: {run.what} at {run.temperature}", flush=True)
        found = certify(run, given.time_limit, given.power)
        rows.append(row(run, found))
        if found["verdict"] != ("failed" if run.broken else "passed"):
            wrong.append(run.what)
        print("   ", rows[-1], flush=True)
    minutes = (time.monotonic() - started) / 60
    took = ", some certificates again by `--again`" if given.again else f", in {minutes:.0f} minutes"
    given.out.write_text(
        "# Draft heads, certified\n\n"
        f"Made by `just certify-heads` on two cores{took}. The weights of `glm4moe`, `qwen35`, `step35` and\n"
        "`llama` are random (models/zoo.py): a certificate shows that the output is the target's whatever a head says. The trained\n"
        "EAGLE-3 head's certificates are [eagle3.html](eagle3.html) (temperature 1) and [eagle3-07.html](eagle3-07.html) (0.7).\n"
        "*Evidence* is a power of ten; 3 is proof that the output is not the target's. *Finds* is the smallest difference between\n"
        "drafted and plain outputs that would have been found.\n\n"
        "| head | temperature | tokens | drafted | accepted | evidence | finds | verdict |\n|---|--:|--:|--:|--:|--:|--:|---|\n"
        + "\n".join(rows)
        + "\n",
        encoding="utf-8",
    )
    if wrong:
        print(f"not as it should be: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
