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
# What a right rule's texts must be able to find: about a minute's worth on two cores.
POWER = 0.12


def certify(name: str, *flags: str) -> None:
    """Runs the command; its certificate is kept."""
    RAW.mkdir(parents=True, exist_ok=True)
    page = RAW / f"{name}.html"
    command = [BINARY, "certify", "-m", MODELS / TARGET, "-md", MODELS / DRAFT, *UNSHAPED, "-s", "1"]
    command += ["--out", page, *flags]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1, 3) or not page.exists():
        sys.exit(f"{name}: {done.stderr}")
    certificate = kept(name)
    assert certificate
    decoder = certificate["decoder"]
    print(f"{name}: {certificate['verdict']}, {decoder['tokens']} tokens, {decoder['seconds']:.0f} s", flush=True)


def certify_rule(rule: str, seconds: int, *flags: str) -> None:
    paths = ["--spec-draft-paths", str(RULES[rule])] if RULES[rule] > 1 else []
    certify(rule, "--verify", rule, *paths, "--power", str(POWER), "--time-limit", str(seconds), *flags)


def certify_fault(fault: str, seconds: int, *flags: str) -> None:
    penalties = ["--presence-penalty", "1"] if fault == "penalties" else []
    certify(fault, "--broken", fault, *penalties, "--time-limit", str(seconds), *flags)


def kept(name: str) -> dict[str, Any] | None:
    """The certificate of an earlier run."""
    path = RAW / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def power_of_ten(evidence: float) -> str:
    return f"10^{evidence:.1f}"


def rule_row(rule: str, certificate: dict[str, Any]) -> tuple[str, bool]:
    """A rule that must pass."""
    decoder, proof = certificate["decoder"], certificate["rule"]
    error = "not enumerated" if proof is None else f"{proof['worst_error']:.0e}"
    row = f"| {rule} | {RULES[rule]} | {error} | {decoder['texts']} | {decoder['tokens']} | {power_of_ten(decoder['law_evidence'])} "
    row += f"| {percent(decoder['smallest_share'])} | {certificate['verdict']} |\n"
    return row, certificate["verdict"] == "passed"


def fault_row(fault: str, certificate: dict[str, Any]) -> tuple[str, bool]:
    """A decoder that must be found out."""
    decoder, proof = certificate["decoder"], certificate["rule"]
    by_texts = "yes" if decoder["ended"] == "proof" else "not within the time"
    by_rule = "the rule is right" if proof["lossless"] else f"off by {proof['worst_error']:.1e}, at once"
    row = f"| `{fault}`: {certificate['broken_on_purpose']} | {by_rule} | {by_texts} | {decoder['texts']} | {decoder['tokens']} "
    row += f"| {power_of_ten(decoder['law_evidence'])} | {decoder['seconds']:.0f} | {certificate['verdict']} |\n"
    return row, certificate["verdict"] == "failed"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} threads"


def write() -> bool:
    """The report, of what was run so far; whether all of it is as it must be."""
    faults = [fault_row(name, it) for name in FAULTS if (it := kept(name))]
    rules = [rule_row(name, it) for name in RULES if (it := kept(name))]
    text = f"""# What `forerun certify` finds

Made by `just detections` on {time.strftime("%Y-%m-%d", time.gmtime())}. Target {TARGET}, drafter {DRAFT} (the same with blocks left out),
temperature 1 without any cut, drafts of 4, five prompts, 16 texts at once, false-alarm rate 0.001. Machine: {machine()}.
*Evidence* is how many times likelier the data are if something is wrong; at 10^3 it is a proof, and the test stops.

## Decoders broken on purpose

`forerun certify --broken …` must fail. *By enumeration*: the largest error of a probability, where the rule itself is what is
broken. *By texts*: whether drafted texts alone proved it within ten minutes; *texts*, *tokens* and *seconds* are what that took,
or what was looked at in vain.

| fault | by enumeration | by texts | texts | tokens | evidence | seconds | verdict |
|---|---|---|--:|--:|--:|--:|---|
{"".join(row for row, _ in faults)}
## Rules that are lossless

Each must pass, here after a minute of texts or a little more. *Smallest share*: of tokens that, had they come from the
drafter's law, would have been found; more time makes it smaller.

| rule | paths | error by enumeration | texts | tokens | evidence | smallest share | verdict |
|---|--:|--:|--:|--:|--:|--:|---|
{"".join(row for row, _ in rules)}"""
    (REPOSITORY / "bench/certify/detections.md").write_text(text, encoding="utf-8")
    return all(right for _, right in faults + rules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=180, help="at most, for each right rule")
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="for each fault")
    parser.add_argument("--only", nargs="+", choices=[*FAULTS, *RULES], help="run these; keep the others' certificates")
    parser.add_argument("--threads", default="", help="of the models' passes")
    arguments = parser.parse_args()
    flags = ["--threads", arguments.threads] if arguments.threads else []
    right = True
    for name in arguments.only or [*FAULTS, *RULES]:
        if name in FAULTS:
            certify_fault(name, arguments.limit, *flags)
        else:
            certify_rule(name, arguments.seconds, *flags)
        right = write()
    if not right:
        sys.exit("a right decoder was accused, or a broken one was not found out")


if __name__ == "__main__":
    main()
