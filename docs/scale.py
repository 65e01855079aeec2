#!/usr/bin/env python3
"""Writes the tables of docs/scale.md with `forerun simulate`; FORERUN_BIN is the binary.

Without arguments it writes them; with --check it changes nothing and fails where they are not what the simulator
says of bench/reports. Its random choices are seeded, so it says the same each time.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs/scale.md"
REPORT = REPOSITORY / "bench/fleet/grown.json"
# Of a pair whose target is wide instead of deep.
WIDENED = REPOSITORY / "bench/reports/widened-q8_0.json"
# A machine on which passes over a few tokens take as long as over one.
FLAT = ["--target-ms", "1=20,16=21,64=24", "--draft-ms", "1=2,16=2.1,64=2.4"]
BINARY = os.environ.get("FORERUN_BIN", "forerun")
# A conversation of the examples: four requests, a beginning all have in common.
TALK = ["--turns", "4", "--think", "20", "--prompt-len", "200", "--output-len", "150", "--shared-len", "120"]


def simulate(*flags: object, report: Path = REPORT) -> dict[str, dict[str, Any]]:
    """What a fleet does, by how it drafts."""
    command = [BINARY, "simulate", str(report), "--json", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return {row["drafting"]: row for row in json.loads(done.stdout)["fleets"]}


def users() -> Iterator[str]:
    """One replica by its users: where drafts stop paying."""
    yield "| users | plain, tokens/s | speedup, fixed | speedup, best | request p50, plain (s) | request p50, best (s) |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for count in (1, 2, 3, 4, 6, 8, 16):
        rows = simulate("--users", count, "--parallel", 8, "--seconds", 1200)
        off, fixed, best = (rows[kind] for kind in ("off", "fixed", "best"))
        yield (
            f"| {count} | {off['tokens_per_second']:.1f} | {fixed['speedup']:.2f} | {best['speedup']:.2f} "
            f"| {off['request_s'][0]:.1f} | {best['request_s'][0]:.1f} |"
        )


def flat() -> Iterator[str]:
    """The same acceptance where it was measured, and projected to a flat machine."""
    yield "| users | speedup as measured here, fixed | best | projected, fixed | best |"
    yield "|--:|--:|--:|--:|--:|"
    for count in (1, 4, 16):
        flags = ["--users", count, "--parallel", 16, "--prompt-len", 64, "--seconds", 1200]
        here = simulate(*flags, report=WIDENED)
        there = simulate(*flags, *FLAT, report=WIDENED)
        speedups = [f"{rows[kind]['speedup']:.2f}" for rows in (here, there) for kind in ("fixed", "best")]
        yield f"| {count} | {' | '.join(speedups)} |"


def fleet() -> Iterator[str]:
    """A thousand replicas by how much is asked of them."""
    yield "| conversations/s | drafts | tokens/s | utilisation | first token p50, p99 (s) | request p50, p99 (s) | waiting | replica-hours per million tokens |"
    yield "|--:|---|--:|--:|--:|--:|--:|--:|"
    for rate in (5, 10, 15, 20, 25):
        for kind, row in simulate("--replicas", 1000, "--rate", rate, *TALK, "--seconds", 600).items():
            first, whole = row["first_token_s"], row["request_s"]
            yield (
                f"| {rate} | {kind} | {row['tokens_per_second']:.0f} | {row['busy']:.2f} | {first[0]:.1f}, {first[1]:.1f} "
                f"| {whole[0]:.0f}, {whole[1]:.0f} | {row['waiting']} | {row['price_per_million_tokens']:.0f} |"
            )


def cache() -> Iterator[str]:
    """The prefix cache by the size of the fleet and how requests are spread."""
    yield "| replicas | slots | hit rate, cache-aware | hit rate, round-robin | first token p50, cache-aware (s) | first token p50, round-robin (s) |"
    yield "|--:|--:|--:|--:|--:|--:|"
    for replicas in (4, 32, 256, 1000):
        for slots in (4, 16):
            flags = ["--replicas", replicas, "--parallel", slots, "--rate", replicas / 100, *TALK, "--seconds", 600]
            sticky, spread = (simulate(*flags, "--policy", policy)["best"] for policy in ("cache-aware", "round-robin"))
            yield (
                f"| {replicas} | {slots} | {sticky['hit_rate']:.2f} | {spread['hit_rate']:.2f} "
                f"| {sticky['first_token_s'][0]:.2f} | {spread['first_token_s'][0]:.2f} |"
            )


def router() -> Iterator[str]:
    """A router that takes its time over each request, before a thousand replicas."""
    yield "| router, µs per request | router capacity, requests/s | tokens/s | first token p50 (s) | p99 (s) |"
    yield "|--:|--:|--:|--:|--:|"
    for microseconds in (100, 1000, 5000, 10_000, 20_000, 50_000):
        flags = ["--replicas", 1000, "--rate", 15, *TALK, "--router-us", microseconds, "--seconds", 600]
        row = simulate(*flags)["best"]
        first = row["first_token_s"]
        yield f"| {microseconds} | {1e6 / microseconds:.0f} | {row['tokens_per_second']:.0f} | {first[0]:.2f} | {first[1]:.2f} |"


def late() -> Iterator[str]:
    """A router that asks replicas how busy they are only now and then."""
    yield "| load known | replicas | tokens/s | first token p50, p99 (s) | request p50, p99 (s) |"
    yield "|--:|--:|--:|--:|--:|"
    for replicas in (2, 32, 1000):
        for seconds in (0, 1, 10):
            flags = ["--replicas", replicas, "--rate", 15 * replicas / 1000, *TALK, "--load-interval", seconds, "--seconds", 1200]
            row = simulate(*flags)["best"]
            first, whole = row["first_token_s"], row["request_s"]
            often = f"every {seconds} s" if seconds else "always"
            yield (
                f"| {often} | {replicas} | {row['tokens_per_second']:.1f} | {first[0]:.1f}, {first[1]:.1f} "
                f"| {whole[0]:.0f}, {whole[1]:.0f} |"
            )


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "users": users,
    "flat": flat,
    "fleet": fleet,
    "cache": cache,
    "router": router,
    "late": late,
}


def written(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in TABLES.items():
        before, begin, rest = text.partition(f"<!-- table {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (begin and end):
            sys.exit(f"docs/scale.md has no table {name}")
        text = f"{before}{begin}{chr(10).join(table())}\n{end}{after}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something differs")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    now = written(text)
    if check and now != text:
        sys.exit("docs/scale.md is not what the simulator says; run `just scale`")
    if not check:
        PAGE.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    main()
