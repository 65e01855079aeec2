#!/usr/bin/env python3
"""Soak test: `forerun serve` at capacity, with clients of all kinds, for as long as asked.

Every dealing with the server is counted; what breaks a promise is shown. Fails, with a list of what
did not hold, if an accepted request had no end, memory grew, a slot stayed taken, or the server did
not stop as it should.
"""

import argparse
import asyncio
import collections
import contextlib
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import clients
import server

TARGET, DRAFT = "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"
# Any model's rows have a mean, so this one embeds too.
EMBEDDING = "SmolLM2-135M-Instruct.Q4_0.gguf"
SLOTS, QUEUE, CONTEXT_LEN = 4, 16, 1024
TIMEOUT_S, READ_TIMEOUT_S, GRACE_S = 60, 5, 30
# As many as fit into slots and queue, and a few more, so that some are told to come again.
GOOD_COUNT, BAD_COUNT = 22, 8
SAMPLE_S = 5.0
WARM_UP = 0.2
GROWTH_MAX = 0.02
# In less time than this, memory has not settled, and its growth says nothing.
SETTLED_MIN = 10.0
EXAMPLES = 5


@dataclass
class Tally:
    """What came of all dealings."""

    counts: dict[str, collections.Counter[str]] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    bad_count: int = 0

    def add(self, name: str, outcome: str) -> None:
        self.counts.setdefault(name, collections.Counter())[outcome] += 1

    def broken(self, name: str, what: str) -> None:
        self.add(name, "BROKEN PROMISE")
        self.bad_count += 1
        if len(self.bad) < 40 and sum(line.startswith(f"{name}:") for line in self.bad) < EXAMPLES:
            self.bad.append(f"{name}: {what}")


@dataclass
class Check:
    """A requirement, and whether it held."""

    what: str
    held: bool
    found: str


async def deal(world: clients.World, tally: Tally, client: clients.Client) -> str:
    """Lets a client deal with the server once; gives what came of it."""
    name = client.__name__
    try:
        outcome = await client(world)
        tally.add(name, outcome)
        return outcome
    except clients.Bad as broken:
        tally.broken(name, str(broken))
    except TimeoutError:
        tally.broken(name, "no end within the server's own limit and some patience")
    except (OSError, asyncio.IncompleteReadError, ValueError, KeyError, IndexError) as broken:
        tally.broken(name, f"{type(broken).__name__}: {broken}"[:300])
    return "broken"


async def customer(
    world: clients.World, tally: Tally, kinds: dict[clients.Client, int], until: float
) -> None:
    """Sends clients one after the other."""
    while time.monotonic() < until:
        client = world.random.choices(list(kinds), list(kinds.values()))[0]
        while (await deal(world, tally, client)).startswith("busy") and time.monotonic() < until:
            # The server says to come again in a second; some are less patient.
            await asyncio.sleep(world.random.choice([0.1, 1.0]))
        if kinds is clients.BAD:
            await asyncio.sleep(world.random.random())


async def sample(under_test: server.Server, samples: list[dict[str, float]], until: float) -> None:
    """Notes the server's memory and open files."""
    started = time.monotonic()
    while time.monotonic() < until and under_test.process.poll() is None:
        now = {"minute": (time.monotonic() - started) / 60, "files": under_test.files()}
        samples.append(now | {name: kib / 1024 for name, kib in under_test.memory_kib().items()})
        await asyncio.sleep(SAMPLE_S)


async def tell(tally: Tally, world: clients.World, until: float) -> None:
    """Says now and then how it goes."""
    started = time.monotonic()
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 30.0))
        count = sum(counts.total() for counts in tally.counts.values())
        minutes = (time.monotonic() - started) / 60
        print(
            f"{minutes:5.1f} min: {count} dealings, {world.tokens} tokens, "
            f"{tally.bad_count} broken promises",
            flush=True,
        )


async def metrics(world: clients.World) -> dict[str, float]:
    """The server's own numbers, summed over labels."""
    async with asyncio.timeout(10), clients.Line.open(world) as line:
        await line.ask(None, "/metrics", "GET")
        text = b"".join([part async for part in line.parts()]).decode()
    values: dict[str, float] = collections.defaultdict(float)
    for row in text.splitlines():
        if row and not row.startswith("#"):
            name, value = row.rsplit(" ", 1)
            values[name.split("{")[0]] += float(value)
    return values


async def waits_for_rest(world: clients.World, seconds: float) -> float | None:
    """How long it takes until nothing runs or waits; `None` where it does not end."""
    started = time.monotonic()
    while (spent := time.monotonic() - started) < seconds:
        now = await metrics(world)
        if now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0:
            return spent
        await asyncio.sleep(0.25)
    return None


async def check_rest(world: clients.World, under_test: server.Server, files: int) -> list[Check]:
    """Once all clients are gone, nothing is left of them, and the server answers."""
    rest = await waits_for_rest(world, 20)
    found = "never" if rest is None else f"after {rest:.1f} s"
    checks = [Check("no slot is taken 20 s after the last client", rest is not None, found)]
    await asyncio.sleep(READ_TIMEOUT_S + 1)
    left = under_test.files() - files
    checks.append(Check("no connection is left open", left <= 2, f"{left} more files than at first"))
    tally = Tally()
    await deal(world, tally, clients.chat)
    await deal(world, tally, clients.chat_stream)
    checks.append(Check("the server still answers", not tally.bad, "; ".join(tally.bad) or "it does"))
    return checks


async def check_queue(world: clients.World) -> Check:
    """Clients that leave while they wait in the queue do not keep their places."""
    long = clients.question(world, max_tokens=500, ignore_eos=True, stream=True)
    async with contextlib.AsyncExitStack() as busy:
        for _ in range(SLOTS):
            line = await busy.enter_async_context(clients.Line.open(world))
            await line.ask(long)
        await asyncio.sleep(1)
        async with contextlib.AsyncExitStack() as waiting:
            for _ in range(8):
                line = await waiting.enter_async_context(clients.Line.open(world))
                await line.ask(long)
        started = time.monotonic()
        while (spent := time.monotonic() - started) < 5:
            now = await metrics(world)
            if now["vllm:num_requests_waiting"] == 0:
                break
            await asyncio.sleep(0.1)
        else:
            spent = None
        running = now["vllm:num_requests_running"]
    what = "clients that left the queue have no place in it 5 s later"
    found = f"8 of them gone after {spent:.1f} s" if spent is not None else "they keep them"
    await waits_for_rest(world, 60)
    return Check(what, spent is not None, f"{found}, with {running:.0f} sequences running")


async def check_stop(world: clients.World, under_test: server.Server) -> list[Check]:
    """Told to stop, the server lets a text end and exits well."""
    tally = Tally()

    async def last(world: clients.World) -> str:
        body = clients.question(world, max_tokens=200, ignore_eos=True)
        chunks = await clients.streamed(world, body)
        return chunks if isinstance(chunks, str) else "answered"

    stream = asyncio.create_task(deal(world, tally, last))
    await asyncio.sleep(1)
    code, seconds = await asyncio.to_thread(under_test.stop, GRACE_S + 10)
    await stream
    ended = tally.counts["last"]["answered"] == 1
    found = "it did" if ended else f"{dict(tally.counts['last'])} {'; '.join(tally.bad)}"
    what = f"SIGTERM: exit code 0 within {GRACE_S} s"
    return [
        Check("SIGTERM: a text in the making ends properly", ended, found),
        Check(what, code == 0 and seconds <= GRACE_S + 3, f"exit code {code} after {seconds:.1f} s"),
    ]


def settled(samples: list[dict[str, float]], minutes: float) -> list[dict[str, float]]:
    return [it for it in samples if it["minute"] >= WARM_UP * minutes]


def growth(samples: list[dict[str, float]], name: str) -> tuple[float, float]:
    """Slope in MiB a minute by least squares, and growth over the time as a share of the mean."""
    at = np.array([it["minute"] for it in samples])
    size = np.array([it[name] for it in samples])
    if len(at) < 3:
        return 0.0, 0.0
    slope = float(np.polyfit(at, size, 1)[0])
    return slope, slope * float(at[-1] - at[0]) / float(size.mean())


def check_memory(samples: list[dict[str, float]], minutes: float) -> Check:
    slope, share = growth(settled(samples, minutes), "VmRSS")
    short = minutes < SETTLED_MIN
    note = f"; not judged below {SETTLED_MIN:.0f} minutes" if short else ""
    what = f"memory is flat within {100 * GROWTH_MAX:.0f} % after the warm-up"
    found = f"{slope:+.3f} MiB/min, {100 * share:+.2f} % in all{note}"
    return Check(what, short or abs(share) <= GROWTH_MAX, found)


def check_log(log: Path) -> Check:
    """The server's log knows of no panic and no failed text."""
    lines = log.read_text(errors="replace").splitlines()
    seen = [line for line in lines if "panicked" in line or "ERROR" in line]
    return Check("the log has no panic and no error", not seen, seen[0][:200] if seen else "none")


def plot(samples: list[dict[str, float]], minutes: float, path: Path) -> None:
    """Memory over time."""
    plt.rcParams.update({
        "font.family": "sans-serif", "font.size": 12, "svg.fonttype": "none",
        "svg.hashsalt": "forerun", "axes.spines.top": False, "axes.spines.right": False,
    })
    figure, axes = plt.subplots(figsize=(6, 3.2))
    at = [it["minute"] for it in samples]
    axes.plot(at, [it["VmRSS"] for it in samples], color="#0b5fa5", linewidth=2, label="resident")
    axes.plot(at, [it["RssAnon"] for it in samples], color="#b3470a", linewidth=2, linestyle="--",
              label="of it, not the model's file")
    axes.axvspan(0, WARM_UP * minutes, color="#eeeeee")
    axes.text(WARM_UP * minutes / 2, 0.03, "warm-up", transform=axes.get_xaxis_transform(),
              ha="center", fontsize=10, color="#666666")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("minutes")
    axes.set_ylabel("MiB")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    plt.close(figure)


def memory_table(samples: list[dict[str, float]], minutes: float) -> str:
    """Memory in ten parts of the time."""
    rows = ["| minutes | resident, lowest | highest | not the file's, highest | open files, most |"]
    rows.append("|--:|--:|--:|--:|--:|")
    for part in range(10):
        low, high = part * minutes / 10, (part + 1) * minutes / 10
        now = [it for it in samples if low <= it["minute"] < high]
        if now:
            sizes = [it["VmRSS"] for it in now]
            anon, files = max(it["RssAnon"] for it in now), max(it["files"] for it in now)
            cells = [f"{low:.1f}–{high:.1f}", f"{min(sizes):.1f}", f"{max(sizes):.1f}", f"{anon:.1f}"]
            rows.append(f"| {' | '.join(cells)} | {files:.0f} |")
    return "\n".join(rows)


def counts_table(tally: Tally) -> str:
    """All dealings by kind and outcome."""
    rows = ["| client | dealings | outcomes |", "|---|--:|---|"]
    for name in (it.__name__ for it in (*clients.GOOD, *clients.EMBED, *clients.RANK, *clients.BAD)):
        if counts := tally.counts.get(name):
            said = ", ".join(f"{outcome} {count}" for outcome, count in counts.most_common())
            rows.append(f"| {name.replace('_', ' ')} | {counts.total()} | {said} |")
    return "\n".join(rows)


def write(
    to: Path, minutes: float, tally: Tally, world: clients.World, checks: list[Check],
    samples: list[dict[str, float]], command: list[str], numbers: dict[str, float],
) -> None:
    """The report."""
    plot(samples, minutes, to.with_suffix(".svg"))
    where = server.machine()
    words = [word.rpartition("/")[2] if "/" in word else word for word in command[:-2]]
    rows = "\n".join(
        f"| {it.what} | {'yes' if it.held else '**no**'} | {it.found} |" for it in checks
    )
    after = settled(samples, minutes)
    sizes = [it["VmRSS"] for it in after] or [0.0]
    slope, share = growth(after, "VmRSS")
    total = sum(counts.total() for counts in tally.counts.values())
    bad = "\n".join(f"* {line}" for line in tally.bad) or "None."
    refused = numbers["forerun:requests_refused_total"]
    text = f"""# Soak: `forerun serve` at capacity, with clients of all kinds

Made by `just soak`, {time.strftime("%Y-%m-%d", time.gmtime())}, commit {server.commit()},
{server.version(server.FORERUN)} (binary {server.digest(Path(server.FORERUN))}). Machine: {where["processor"]}, {where["threads"]} threads.

Server: `{" ".join(words)}`. {GOOD_COUNT} clients want answers all the time, more than slots
and queue hold; {BAD_COUNT} disturb. Every dealing ends in an outcome that is counted; *late* is the server's own limit of
{TIMEOUT_S} s, told as status 504 or as an error in the stream; *busy* is a full queue.

## Requirements

| requirement | held | found |
|---|---|---|
{rows}

## Dealings

{total} in {minutes:g} minutes, with {world.tokens} tokens answered by `usage`; the server counts {numbers["vllm:generation_tokens_total"]:.0f} tokens made, those for
clients that left included, {numbers["vllm:request_success_total"]:.0f} sequences that ended well, {numbers["forerun:requests_failed_total"]:.0f} that did not (clients left, or too late), and {refused:.0f} requests refused.
Seeds: a seed said something else than the first time {world.seeds_differed} times. Health, metrics and their like took at
most {world.slowest_look_s:.2f} s.

{counts_table(tally)}

## Broken promises

{bad}

## Memory, in MiB

![Resident memory over time]({to.name}.svg)

After a warm-up of {100 * WARM_UP:.0f} % of the time: {min(sizes):.1f} to {max(sizes):.1f} MiB ({100 * (max(sizes) / max(min(sizes), 1) - 1):.2f} % apart), slope {slope:+.3f} MiB/min, {100 * share:+.2f} % in all.

{memory_table(samples, minutes)}
"""
    to.with_suffix(".md").write_text(text, encoding="utf-8")


async def soak(given: argparse.Namespace, under_test: server.Server) -> bool:
    """Runs all clients, then the checks; whether all held."""
    world = clients.World(under_test.port, TIMEOUT_S, READ_TIMEOUT_S, random.Random(given.seed))
    tally, samples = Tally(), list[dict[str, float]]()
    await clients.chat(world)
    kinds = clients.GOOD | (clients.RANK if given.ranks else clients.EMBED)
    if not given.ranks:
        # llama.cpp's buffers grow to the largest pass over texts so far: this is the largest there will be.
        await clients.embedded(world, clients.largest_texts())
    files = under_test.files()
    until = time.monotonic() + 60 * given.minutes
    customers = [customer(world, tally, kinds, until) for _ in range(GOOD_COUNT)]
    customers += [customer(world, tally, clients.BAD, until) for _ in range(BAD_COUNT)]
    watch = [sample(under_test, samples, until), tell(tally, world, until)]
    await asyncio.gather(*customers, *watch)
    print("all clients are gone; checking what is left", flush=True)
    checks = [Check("every accepted request had an end, every wrong one its refusal",
                    tally.bad_count == 0, f"{tally.bad_count} broken promises")]
    if under_test.process.poll() is None:
        checks += await check_rest(world, under_test, files)
        checks.append(await check_queue(world))
        numbers = await metrics(world)
        checks += await check_stop(world, under_test)
    else:
        numbers = collections.defaultdict(float)
        checks.append(Check("the server lives", False, f"exit code {under_test.process.poll()}"))
    checks += [check_memory(samples, given.minutes), check_log(under_test.log)]
    to = given.out / given.name
    write(to, given.minutes, tally, world, checks, samples, under_test.command, numbers)
    for check in checks:
        print(f"{'held  ' if check.held else 'FAILED'}  {check.what}: {check.found}")
    for line in tally.bad:
        print(f"broken promise: {line}")
    return all(check.held for check in checks)


def flags(given: argparse.Namespace) -> list[str]:
    """The server's."""
    files = ["-m", str(server.MODELS / given.target)]
    files += ["-md", str(server.MODELS / given.draft)] if given.draft else ["--spec-type", "ngram"]
    sizes = ["-np", str(SLOTS), "-t", str(given.threads), "-c", str(CONTEXT_LEN), "--max-queued-requests", str(QUEUE)]
    times = ["--timeout", str(TIMEOUT_S), "--read-timeout", str(READ_TIMEOUT_S), "--shutdown-timeout", str(GRACE_S)]
    pooling = "rank" if given.ranks else "mean"
    more = ["--lossy-max", str(clients.LOSSY_MAX), "--embedding-model", str(server.MODELS / given.embedding), "--pooling", pooling]
    return [*files, *sizes, *times, *more]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default=TARGET, help="default: %(default)s")
    parser.add_argument("--draft", default=DRAFT, help="draft model or head, empty for drafts by n-grams; default: %(default)s")
    parser.add_argument("--embedding", default=EMBEDDING, help="model that embeds texts or ranks them; default: %(default)s")
    parser.add_argument("--ranks", action="store_true", help="that model scores documents")
    parser.add_argument("--name", default="soak", help="of the report; default: %(default)s")
    parser.add_argument("more", nargs="*", help="further flags of the server, after --")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the report's folder")
    given = parser.parse_args()
    log = Path.home() / f".cache/forerun/{given.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    under_test = server.Server("forerun", server.forerun(*flags(given), *given.more), log)
    print(f"about {given.minutes + 3:.0f} minutes; the server's log is {log}", flush=True)
    with server.serving([under_test]):
        return 0 if asyncio.run(soak(given, under_test)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
