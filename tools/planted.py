#!/usr/bin/env python3
"""Plants mistakes in a copy of the sources, one after the other, and has the simulator of the server find them.

The mistakes are in `tools/planted.toml`. Each is looked for in as many runs as CI makes (`just faults`). Writes
`bench/faults/planted.md`, and fails if a mistake was not found.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "bench" / "faults" / "planted.md"
RUNS = 20_000

COMMAND = ["cargo", "test", "--quiet", "-p", "forerun-serve", "--lib", "--", "--ignored", "simulation::many_runs"]

Mistake = dict[str, str]


def copy_sources(copy: Path) -> None:
    """The tracked files as they are. They are new, so that what an earlier call planted is built again without it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def simulate(copy: Path) -> tuple[bool, str]:
    """Whether all runs were well, and what was printed."""
    target = copy.parent / "target"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "FORERUN_SIMULATION_RUNS": str(RUNS)}
    done = subprocess.run(COMMAND, cwd=copy, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def found(output: str) -> tuple[int, str] | None:
    """The first seed that failed, and how."""
    seed = re.search(r"seed (\d+): replay it", output)
    panic = re.search(r"panicked at [^\n]*\n([^\n]*(?:\n +left: [^\n]*)?)", output)
    if seed is None or panic is None:
        return None
    return int(seed[1]), panic[1].split("\n")[0].removeprefix("assertion `left == right` failed: ")


def plant(copy: Path, mistake: Mistake) -> tuple[Path, str]:
    path = copy / mistake["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mistake["old"]) != 1:
        sys.exit(f"{mistake['name']}: what it replaces stands {text.count(mistake['old'])} times in {mistake['file']}")
    path.write_text(text.replace(mistake["old"], mistake["new"]), encoding="utf-8")
    return path, text


def main() -> int:
    mistakes: list[Mistake] = tomllib.loads((ROOT / "tools" / "planted.toml").read_text(encoding="utf-8"))["mistake"]
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "planted"
    copy = folder / "sources"
    shutil.rmtree(copy, ignore_errors=True)
    copy_sources(copy)
    print(f"{len(mistakes)} mistakes, each built and looked for in at most {RUNS:,} runs: about half a minute each", flush=True)
    well, output = simulate(copy)
    if not well:
        print(output)
        sys.exit("the simulator fails without a mistake")
    rows, missed = [], 0
    for mistake in mistakes:
        path, original = plant(copy, mistake)
        started = time.monotonic()
        well, output = simulate(copy)
        seconds = time.monotonic() - started
        path.write_text(original, encoding="utf-8")
        seen = None if well else found(output)
        if seen is None:
            missed += 1
            print(f"{mistake['name']}: NOT FOUND" if well else f"{mistake['name']}: not built\n{output}", flush=True)
            rows.append(f"| {mistake['name']} | {mistake['about']} | **not found** | |")
            continue
        seed, message = seen
        print(f"{mistake['name']}: seed {seed}, {seconds:.0f} s: {message}", flush=True)
        rows.append(f"| {mistake['name']} | {mistake['about']} | {seed} | {message.replace('|', '/')[:120]} |")
    lines = [
        "# Mistakes planted in the server, and how the simulator found them",
        "",
        f"Made by `just planted`. Each mistake of `tools/planted.toml` is put in alone and looked for in {RUNS:,} runs, as many",
        f"as CI makes. Found: {len(mistakes) - missed} of {len(mistakes)}.",
        "",
        "| mistake | what it does | first seed | how it was found |",
        "|---|---|--:|---|",
        *rows,
    ]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
