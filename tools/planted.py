#!/usr/bin/env python3
"""Plants mistakes in a copy of the sources, one after the other, and has tests find them.

The mistakes are in `tools/planted.toml`. Those of the server are looked for by its simulator, in as many runs as CI makes
(`just faults`); those of caches and draft heads by the tests over the zoo. Writes reports under `bench/faults`, and fails
if a mistake was not found.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RUNS = 20_000

Mistake = dict[str, str]


def copy_sources(copy: Path) -> None:
    """The tracked files as they are. They are new, so that what an earlier call planted is built again without it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def found_by_seed(output: str) -> tuple[str, str] | None:
    """The first seed that failed, and how."""
    seed = re.search(r"seed (\d+): replay it", output)
    panic = re.search(r"panicked at [^\n]*\n([^\n]*(?:\n +left: [^\n]*)?)", output)
    if seed is None or panic is None:
        return None
    return seed[1], panic[1].split("\n")[0].removeprefix("assertion `left == right` failed: ")


def found_by_tests(output: str) -> tuple[str, str] | None:
    """How many tests failed, and the first of them."""
    failed = re.findall(r"^    ([a-z0-9_]+(?:::[a-z0-9_]+)*)$", output, flags=re.MULTILINE)
    return (str(len(failed)), failed[0]) if failed else None


class Hunt(NamedTuple):
    """Mistakes of one kind, and what has to find them."""

    key: str
    title: str
    report: str
    about: str
    columns: str
    command: list[str]
    found: Callable[[str], tuple[str, str] | None]


HUNTS = {
    "server": Hunt(
        "mistake",
        "Mistakes planted in the server, and how the simulator found them",
        "planted.md",
        f"looked for in {RUNS:,} runs, as many as CI makes.",
        "first seed | how it was found",
        ["cargo", "test", "--quiet", "-p", "forerun-serve", "--lib", "--", "--ignored", "simulation::many_runs"],
        found_by_seed,
    ),
    "caches": Hunt(
        "cache_mistake",
        "Mistakes planted in caches and draft heads, and how the zoo found them",
        "planted-caches.md",
        "looked for by the tests over the zoo of architectures and of draft heads.",
        "tests that fail | the first of them",
        [
            *"cargo test --quiet --no-fail-fast -p forerun-llama -p forerun-decode".split(),
            *"--features forerun-decode/toy --test zoo --test heads".split(),
        ],
        found_by_tests,
    ),
}


def run(hunt: Hunt, copy: Path) -> tuple[bool, str]:
    """Whether all was well, and what was printed."""
    target = copy.parent / "target"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "FORERUN_SIMULATION_RUNS": str(RUNS)}
    done = subprocess.run(hunt.command, cwd=copy, env=environment, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def plant(copy: Path, mistake: Mistake) -> tuple[Path, str]:
    path = copy / mistake["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mistake["old"]) != 1:
        sys.exit(f"{mistake['name']}: what it replaces stands {text.count(mistake['old'])} times in {mistake['file']}")
    path.write_text(text.replace(mistake["old"], mistake["new"]), encoding="utf-8")
    return path, text


def hunt_down(hunt: Hunt, mistakes: list[Mistake], copy: Path) -> int:
    """Plants each mistake, writes the report, and returns how many were missed."""
    print(f"{hunt.title}: {len(mistakes)}, about half a minute each after the first build", flush=True)
    well, output = run(hunt, copy)
    if not well:
        print(output)
        sys.exit("the tests fail without a mistake")
    rows, missed = [], 0
    for mistake in mistakes:
        path, original = plant(copy, mistake)
        started = time.monotonic()
        well, output = run(hunt, copy)
        seconds = time.monotonic() - started
        path.write_text(original, encoding="utf-8")
        seen = None if well else hunt.found(output)
        if seen is None:
            missed += 1
            print(f"{mistake['name']}: NOT FOUND" if well else f"{mistake['name']}: not built\n{output}", flush=True)
            rows.append(f"| {mistake['name']} | {mistake['about']} | **not found** | |")
            continue
        where, message = seen
        print(f"{mistake['name']}: {where}, {seconds:.0f} s: {message}", flush=True)
        rows.append(f"| {mistake['name']} | {mistake['about']} | {where} | {message.replace('|', '/')[:120]} |")
    lines = [
        f"# {hunt.title}",
        "",
        f"Made by `just planted`. Each mistake of `tools/planted.toml` is put in alone and {hunt.about}",
        f"Found: {len(mistakes) - missed} of {len(mistakes)}.",
        "",
        f"| mistake | what it does | {hunt.columns} |",
        "|---|---|--:|---|",
        *rows,
    ]
    report = ROOT / "bench" / "faults" / hunt.report
    report.parent.mkdir(exist_ok=True)
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="?", choices=HUNTS, help="mistakes of one kind")
    only = parser.parse_args().only
    planted = tomllib.loads((ROOT / "tools" / "planted.toml").read_text(encoding="utf-8"))
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "planted"
    copy = folder / "sources"
    shutil.rmtree(copy, ignore_errors=True)
    copy_sources(copy)
    hunts = [HUNTS[only]] if only else HUNTS.values()
    return 1 if sum(hunt_down(hunt, planted[hunt.key], copy) for hunt in hunts) else 0


if __name__ == "__main__":
    sys.exit(main())
