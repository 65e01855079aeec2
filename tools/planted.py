#!/usr/bin/env python3
"""Plants mistakes in a copy of the sources, one after the other, and has tests find them.

The mistakes are in `tools/planted.toml`. Those of the server are looked for by its simulator, in as many runs as CI makes
(`just faults`); those of caches and draft heads by the tests over the zoo; those of downloads by the tests against a hub
that fails (`just hub`); those of recorded prompts by theirs; those of forms, of the command line and of late scoring by the test that each names. Writes reports under
`bench/faults`, and fails if a mistake was not found.
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
MUTATED = ("forerun", "forerun-grammar", "forerun-lab", "forerun-serve")
# What is built again for each mistake is not optimised: that takes longer than the tests.
QUICK = [f"--config=profile.dev.package.{package}.opt-level=0" for package in MUTATED]

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


def found_by_one(output: str) -> tuple[str, str] | None:
    """The test that failed, and how."""
    failed = re.search(r"^ +FAIL \[[^]]*\] (?:\([^)]*\) )?\S+ (\S+)$", output, flags=re.MULTILINE)
    panic = re.search(r"panicked at [^\n]*\n *([^\n]*)", output)
    return (failed[1].split("::")[-1], panic[1].strip() if panic else "it ended") if failed else None


def run_by(packages: str) -> Callable[[list[Mistake]], list[str]]:
    """The command that runs the tests which mistakes in these packages name."""

    def command(mistakes: list[Mistake]) -> list[str]:
        names = "|".join(sorted({mistake["by"] for mistake in mistakes}))
        return ["cargo", "nextest", "run", *QUICK, *packages.split(), "-E", f"test(/(^|::)({names})$/)"]

    return command


def always(line: str) -> Callable[[list[Mistake]], list[str]]:
    """The command that looks for any mistake."""
    return lambda _: line.split()


def found_by_pytest(output: str) -> tuple[str, str] | None:
    """Where the first test is that failed, and its name."""
    failed = re.search(r"^FAILED \S+::(\S+)", output, flags=re.MULTILINE)
    in_rust = found_by_tests(output)
    return ("tests/hub", failed[1]) if failed else ("crates/hub", in_rust[1]) if in_rust else None


def found_by_either(output: str) -> tuple[str, str] | None:
    """The test that failed, of Rust or of pytest, and how."""
    failed = re.search(r"^FAILED \S+::(\S+)", output, flags=re.MULTILINE)
    # The line of the test says how only where the terminal is wide enough.
    how = re.search(r"^E +([^\n]*)", output, flags=re.MULTILINE)
    return found_by_one(output) or ((failed[1], how[1] if how else "it ended") if failed else None)


class Hunt(NamedTuple):
    """Mistakes of one kind, and what has to find them."""

    key: str
    title: str
    report: str
    about: str
    columns: str
    command: Callable[[list[Mistake]], list[str]]
    found: Callable[[str], tuple[str, str] | None]


HUNTS = {
    "server": Hunt(
        "mistake",
        "Mistakes planted in the server, and how the simulator found them",
        "planted.md",
        f"looked for in {RUNS:,} runs, as many as CI makes.",
        "first seed | how it was found",
        always("cargo test --quiet -p forerun-serve --lib -- --ignored simulation::many_runs"),
        found_by_seed,
    ),
    "caches": Hunt(
        "cache_mistake",
        "Mistakes planted in caches and draft heads, and how the zoo found them",
        "planted-caches.md",
        "looked for by the tests over the zoo of architectures and of draft heads.",
        "tests that fail | the first of them",
        always(
            "cargo test --quiet --no-fail-fast -p forerun-llama -p forerun-decode "
            "--features forerun-decode/toy --test zoo --test heads"
        ),
        found_by_tests,
    ),
    "forms": Hunt(
        "form_mistake",
        "Mistakes planted in the compilation of schemas and grammars, and how tests found them",
        "planted-forms.md",
        "looked for by the test that was written for it.",
        "test | how it failed",
        run_by("-p forerun-serve -p forerun-grammar"),
        found_by_one,
    ),
    "commands": Hunt(
        "command_mistake",
        "Mistakes planted in the command line, and how tests found them",
        "planted-commands.md",
        "looked for by the test that was written for it.",
        "test | how it failed",
        run_by("--workspace --features check,toy,bare"),
        found_by_one,
    ),
    "defer": Hunt(
        "defer_mistake",
        "Mistakes planted in tokens that are scored late, and how tests found them",
        "planted-defer.md",
        "looked for by the test that was written for it.",
        "test | how it failed",
        run_by("-p forerun-decode --features toy"),
        found_by_one,
    ),
    "hub": Hunt(
        "hub_mistake",
        "Mistakes planted in downloads, and how the tests found them",
        "planted-hub.md",
        "looked for by the tests against a hub on this machine that fails.",
        "found in | first test that fails",
        lambda _: [
            "sh",
            "-c",
            "cargo build --quiet -p forerun-hub --example pull && cargo test --quiet -p forerun-hub --lib; own=$?; "
            f"FORERUN_PULL=$CARGO_TARGET_DIR/debug/examples/pull {sys.executable} -m pytest -q -x tests/hub && exit $own",
        ],
        found_by_pytest,
    ),
    "record": Hunt(
        "record_mistake",
        "Mistakes planted in recorded prompts, and how tests found them",
        "planted-record.md",
        "looked for by the tests of recorded prompts.",
        "test | how it failed",
        lambda _: [
            "sh",
            "-c",
            f"cargo nextest run {' '.join(QUICK)} -p forerun-serve -p forerun -E 'test(/record/)' && "
            f"cargo build --quiet {' '.join(QUICK)} -p forerun && "
            f"FORERUN_BIN=$CARGO_TARGET_DIR/debug/forerun {sys.executable} -m pytest -q -x tests/serve/test_record.py",
        ],
        found_by_either,
    ),
}


def run(hunt: Hunt, mistakes: list[Mistake], copy: Path) -> tuple[bool, str]:
    """Whether all was well, and what was printed."""
    target = copy.parent / "target"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target), "FORERUN_SIMULATION_RUNS": str(RUNS)}
    done = subprocess.run(hunt.command(mistakes), cwd=copy, env=environment, capture_output=True, text=True)
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
    well, output = run(hunt, mistakes, copy)
    if not well:
        print(output)
        sys.exit("the tests fail without a mistake")
    rows, missed = [], 0
    for mistake in mistakes:
        path, original = plant(copy, mistake)
        started = time.monotonic()
        well, output = run(hunt, [mistake], copy)
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
        "|---|---|---|---|",
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
