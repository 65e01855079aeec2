#!/usr/bin/env python3
"""Certifies every lossless rule, then decoders broken on purpose: writes bench/certify/detections.md.

FORERUN_BIN is the binary, FORERUN_MODELS the folder of `just models`. Fails if a right decoder is
accused or a broken one is not found out.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/release/forerun")).expanduser()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
RAW = Path.home() / ".cache/forerun/certify"
TARGET, DRAFT = "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-pruned-14+13.gguf"
UNSHAPED = ["--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"]

# A rule, and how many paths it judges.
RULES = {
    "block": 1, "token": 1, "nss": 1, "coupled": 1, "specinfer": 2, "gbv": 2, "traversal": 2, "rsd": 2, "pooled": 2
}
FAULTS = ["token-residual", "draft-temperature", "penalties", "argmax", "leak", "typical", "top-three"]
LIMIT_S = 600


def certified(name: str, *flags: str) -> dict[str, Any]:
    """Runs the command and gives its certificate."""
    RAW.mkdir(parents=True, exist_ok=True)
    page = RAW / f"{name}.html"
    command = [BINARY, "certify", "-m", MODELS / TARGET, "-md", MODELS / DRAFT, *UNSHAPED, "-s", "1"]
    command += ["--out", page, *flags]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1) or not page.exists():
        sys.exit(f"{name}: {done.stderr}")
    certificate = json.loads(page.with_suffix(".json").read_text())
    decoder = certificate["decoder"]
    print(f"{name}: {certificate['verdict']}, {decoder['tokens']} tokens, {decoder['seconds']:.0f} s", flush=True)
    return certificate


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def power_of_ten(exponent: float) -> str:
    return f"10^{exponent:.1f}"


def rule_row(rule: str, seconds: int) -> tuple[str, bool]:
    """A rule that must pass."""
    paths = RULES[rule]
    flags = ["--spec-draft-paths", str(paths)] if paths > 1 else []
    certificate = certified(rule, "--verify", rule, *flags, "--time-limit", str(seconds))
    decoder, proof = certificate["decoder"], certificate["rule"]
    error = "not enumerated" if proof is None else f"{proof['worst_error']:.0e}"
    row = f"| {rule} | {paths} | {error} | {decoder['texts']} | {decoder['tokens']} | {power_of_ten(decoder['law_evidence'])} "
    row += f"| {percent(decoder['smallest_share'])} | {decoder['seconds']:.0f} | {certificate['verdict']} |\n"
    return row, certificate["verdict"] == "passed"


def fault_row(fault: str, seconds: int) -> tuple[str, bool]:
    """A decoder that must be found out, by its texts."""
    flags = ["--presence-penalty", "1"] if fault == "penalties" else []
    certificate = certified(fault, "--broken", fault, *flags, "--time-limit", str(seconds))
    decoder, proof = certificate["decoder"], certificate["rule"]
    found = decoder["ended"] == "proof"
    by_rule = f"{proof['worst_error']:.1e}" if not proof["lossless"] else "the rule is right"
    row = f"| {certificate['broken_on_purpose']} | {by_rule} | {decoder['texts']} | {decoder['tokens']} "
    row += f"| {power_of_ten(decoder['law_evidence'])} | {decoder['seconds']:.0f} | {'found' if found else '**not found**'} |\n"
    return row, found


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} threads"


def write(faults: list[str], rules: list[str]) -> None:
    """The report, of what is known so far."""
    text = f"""# What `forerun certify` finds

Made by `just detections` on {time.strftime("%Y-%m-%d", time.gmtime())}. Target {TARGET}, drafter {DRAFT} (the same with blocks left out),
temperature 1 without any cut, drafts of 4, five prompts, 16 texts at once, false-alarm rate 0.001. Machine: {machine()}.
*Evidence* is how many times likelier the data are if something is wrong; at 10^3 it is a proof, and the test stops.

## Decoders broken on purpose

`forerun certify --broken …` must fail. *By enumeration*: the largest error of a probability where the rule itself is what is
broken. *Texts* and *tokens*: what it took until drafted texts proved it.

| fault | by enumeration | texts | tokens | evidence | seconds | by texts |
|---|--:|--:|--:|--:|--:|---|
{"".join(faults)}
## Rules that are lossless

Each must pass. *Smallest share*: of tokens that, had they come from the drafter's law, would have been found.

| rule | paths | error by enumeration | texts | tokens | evidence | smallest share | seconds | verdict |
|---|--:|--:|--:|--:|--:|--:|--:|---|
{"".join(rules)}"""
    (REPOSITORY / "bench/certify/detections.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each right rule")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="for each fault")
    arguments = parser.parse_args()
    rows: tuple[list[str], list[str]] = ([], [])
    all_right = True
    jobs = [(0, fault_row, fault, arguments.limit) for fault in FAULTS]
    jobs += [(1, rule_row, rule, arguments.seconds) for rule in RULES]
    for table, make, name, seconds in jobs:
        row, right = make(name, seconds)
        rows[table].append(row)
        all_right &= right
        write(*rows)
    if not all_right:
        sys.exit("a right decoder was accused, or a broken one was not found out")


if __name__ == "__main__":
    main()
