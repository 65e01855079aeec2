#!/usr/bin/env python3
"""What each memory allocator costs `forerun serve`: resident memory and tokens under the clients of the soak test.

Allocators take turns, so that a noisy machine is noisy for all of them. glibc's is the binary's own, with two arenas as it
sets them itself and with as many as glibc likes; jemalloc and mimalloc are preloaded (Debian: libjemalloc2,
libmimalloc2.0), so that they serve the C++ half as well.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

import clients
import server
import soak

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
ALLOCATORS = {
    "glibc, two arenas (as it is)": [],
    "glibc, an arena per thread": ["MALLOC_ARENA_MAX=1024"],
    "jemalloc": [f"LD_PRELOAD={LIBRARIES / 'libjemalloc.so.2'}"],
    "mimalloc": [f"LD_PRELOAD={LIBRARIES / 'libmimalloc.so.2.0'}"],
}


async def turn(under_test: server.Server, minutes: float, seed: int) -> dict[str, float]:
    """The clients of the soak test for a while; memory at rest, at most and after, and tokens."""
    world = clients.World(under_test.port, soak.TIMEOUT_S, soak.READ_TIMEOUT_S, random.Random(seed))
    tally, samples = soak.Tally(), list[dict[str, float]]()
    await clients.chat(world)
    rest = under_test.memory_kib()["VmRSS"] / 1024
    before = under_test.cpu_s()
    until = time.monotonic() + 60 * minutes
    customers = [soak.customer(world, tally, clients.GOOD, until) for _ in range(soak.GOOD_COUNT)]
    customers += [soak.customer(world, tally, clients.BAD, until) for _ in range(soak.BAD_COUNT)]
    await asyncio.gather(*customers, soak.sample(under_test, samples, until))
    made = (await soak.metrics(world))["vllm:generation_tokens_total"]
    return {
        "rest": rest,
        "most": max(it["VmRSS"] for it in samples),
        "after": under_test.memory_kib()["VmRSS"] / 1024,
        "tokens_per_cpu_s": made / (under_test.cpu_s() - before),
        "broken": float(tally.bad_count),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each turn; default: %(default)s")
    parser.add_argument("--turns", type=int, default=2, help="of each allocator; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the report's folder")
    given = parser.parse_args()
    print(f"about {len(ALLOCATORS) * given.turns * (given.minutes + 1):.0f} minutes", flush=True)
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ALLOCATORS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.turns):
            for name, environment in ALLOCATORS.items():
                command = ["env", *environment, *server.forerun(*soak.flags(threads=1))]
                under_test = server.Server(name, command, Path(folder) / "log")
                with server.serving([under_test]):
                    results[name].append(asyncio.run(turn(under_test, given.minutes, seed)))
                print(name, results[name][-1], flush=True)
    rows = "\n".join(
        f"| {name} | " + " | ".join(
            f"{statistics.mean(it[column] for it in turns):.1f}" for column in ("rest", "most", "after", "tokens_per_cpu_s")
        ) + " |"
        for name, turns in results.items()
    )
    where = server.machine()
    text = f"""# Memory allocators under `forerun serve`

Made by `bench/serve/allocators.py --minutes {given.minutes:g} --turns {given.turns}`, {time.strftime("%Y-%m-%d", time.gmtime())}, commit {server.commit()},
binary {server.digest(Path(server.FORERUN))}. Machine: {where["processor"]}, {where["threads"]} threads. The clients of the soak test, the allocators taking
turns, {given.turns} turns of {given.minutes:g} minutes each; means.

| allocator | resident at rest, MiB | at most | after the last client | tokens per second of processor time |
|---|--:|--:|--:|--:|
{rows}
"""
    (given.out / "allocators.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(it["broken"] for turns in results.values() for it in turns) else 0


if __name__ == "__main__":
    raise SystemExit(main())
