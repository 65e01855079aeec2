#!/usr/bin/env python3
"""A polite client beside a hostile one: what each attack costs the polite one, memory, and an orderly stop.

For each attack a fresh `forerun serve` is measured idle, then under attack, then sent SIGTERM while the attack goes
on. Two clients, two API keys; `--anonymous` runs the same without keys, so that clients are told apart by connection.
Fails if the polite client's median first token or rate is more than twice its idle figure away, if memory is not
bounded, or if the server does not stop in time.

Hostile clients are a process of the lowest priority: what they cost is to be what the server does for them, not what
they take from its processors for themselves.
"""

import argparse
import asyncio
import collections
import contextlib
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import clients
import server

TARGET, DRAFT = "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"
SLOTS, CONTEXT_LEN, QUEUE = 2, 512, 64
TIMEOUT_S, READ_TIMEOUT_S, WRITE_TIMEOUT_S, GRACE_S = 60, 5, 5, 5
# Tokens of a polite answer, and the measured requests before the attack.
ANSWER_LEN, IDLE_COUNT = 24, 12
# The attack begins so long before the polite client is measured again.
LEAD_S = 3.0
SLOWER_MAX = 2.0
MEMORY_MAX_MIB = 256.0
STOP_MARGIN_S = 5.0

WITHOUT_KEYS = """Without keys every connection is a client of its own, so whoever opens more connections gets more of the slots: the
hostile client here is 4 to 200 clients on two slots. What needs no slot holds; for the rest the server needs API keys.
"""

Attack = Callable[[clients.World, "Outcomes"], Awaitable[None]]


class Outcomes(collections.Counter[str]):
    """What became of hostile requests."""

    def status(self, line: clients.Line) -> None:
        self[str(line.status)] += 1


@dataclass
class Figures:
    """What a polite client saw."""

    first_token_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)


@dataclass
class Result:
    """One attack, measured."""

    name: str
    idle: Figures
    attacked: Figures
    outcomes: Outcomes
    memory_mib: tuple[float, float]
    stop: tuple[int | None, float]

    def slower(self) -> tuple[float, float]:
        """How many times later the first token comes, and how many times slower the others."""
        if not self.attacked.first_token_s:
            return float("inf"), float("inf")
        first = statistics.median(self.attacked.first_token_s) / statistics.median(self.idle.first_token_s)
        rate = statistics.median(self.idle.tokens_per_s) / statistics.median(self.attacked.tokens_per_s)
        return first, rate

    def failures(self) -> list[str]:
        first, rate = self.slower()
        idle, peak = self.memory_mib
        code, seconds = self.stop
        found = []
        if first > SLOWER_MAX:
            found.append(f"first token {first:.2f} times its idle figure")
        if rate > SLOWER_MAX:
            found.append(f"tokens {rate:.2f} times slower than idle")
        if self.attacked.refused:
            found.append(f"polite requests refused: {dict(self.attacked.refused)}")
        if peak - idle > MEMORY_MAX_MIB:
            found.append(f"memory grew by {peak - idle:.0f} MiB")
        if code != 0 or seconds > GRACE_S + STOP_MARGIN_S:
            found.append(f"SIGTERM: exit code {code} after {seconds:.1f} s")
        return found


async def polite(world: clients.World, figures: Figures) -> None:
    """One streamed answer of a fixed length to a prompt nobody sent before."""
    number = world.random.randrange(1 << 30)
    text = f"Write a sentence about {world.random.choice(clients.SUBJECTS)}, as number {number}."
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": ANSWER_LEN}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    started = time.monotonic()
    first = last = None
    tokens = 0
    async with asyncio.timeout(TIMEOUT_S + clients.PATIENCE_S), clients.Line.open(world) as line:
        await line.ask(body)
        if line.status != 200:
            figures.refused[str(line.status)] += 1
            await line.json()
            return
        async for event in line.events():
            if event is None:
                break
            if "error" in event:
                figures.refused[event["error"].get("code") or "error"] += 1
                return
            if any(choice["delta"].get("content") for choice in event["choices"]):
                last = time.monotonic()
                first = first or last
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    if first is None or last is None or last == first:
        figures.refused["no tokens"] += 1
        return
    figures.first_token_s.append(first - started)
    figures.tokens_per_s.append((tokens - 1) / (last - first))


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | more


async def again(world: clients.World, outcomes: Outcomes, body: Callable[[], dict[str, Any]]) -> None:
    """Sends one request after the other and reads what comes."""
    while True:
        async with clients.Line.open(world) as line:
            await line.ask(body())
            outcomes.status(line)
            async for _ in line.parts():
                pass
        if line.status != 200:
            await asyncio.sleep(0.05)


def huge_schema(world: clients.World) -> dict[str, Any]:
    """20,000 required names that no earlier request had."""
    stem = f"{world.random.randrange(1 << 30):x}"
    names = [f"{stem}{index}" for index in range(20_000)]
    schema = {"type": "object", "required": names, "additionalProperties": {"type": "string"}}
    form = {"type": "json_schema", "json_schema": {"name": "huge", "schema": schema}}
    return chat("Fill in the form.", n=16, response_format=form, max_tokens=64)


def wide_schema(world: clients.World) -> dict[str, Any]:
    """As much as is compiled: a schema of a few hundred properties that no earlier request had."""
    stem = f"{world.random.randrange(1 << 30):x}"
    properties = {f"{stem}{index}": {"type": "string", "pattern": "^(a|b|ab)*c{1,9}$"} for index in range(200)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "wide", "schema": schema}}
    return chat("Fill in the form.", n=2, response_format=form, max_tokens=64)


AMBIGUOUS = """root ::= item+
item ::= word | word word | word word word | "(" item* ")"
word ::= [a-z ]+ | [a-z]+ " " | " "*"""


async def forms(world: clients.World, outcomes: Outcomes) -> None:
    huge = [again(world, outcomes, lambda: huge_schema(world)) for _ in range(4)]
    wide = [again(world, outcomes, lambda: wide_schema(world)) for _ in range(4)]
    await asyncio.gather(*huge, *wide)


async def long_drafts(world: clients.World, outcomes: Outcomes) -> None:
    def body() -> dict[str, Any]:
        length = world.random.choice([8, 64])
        return chat("Count to a thousand.", speculative={"length": length}, max_tokens=128, ignore_eos=True)

    await asyncio.gather(*(again(world, outcomes, body) for _ in range(4)))


async def ambiguous_grammars(world: clients.World, outcomes: Outcomes) -> None:
    def body() -> dict[str, Any]:
        return chat("Write.", grammar=AMBIGUOUS, speculative={"length": 8}, max_tokens=128)

    await asyncio.gather(*(again(world, outcomes, body) for _ in range(4)))


async def many_choices(world: clients.World, outcomes: Outcomes) -> None:
    def body() -> dict[str, Any]:
        return chat("Tell me a long story.", n=16, max_tokens=400, ignore_eos=True)

    await asyncio.gather(*(again(world, outcomes, body) for _ in range(5)))


async def unread_answers(world: clients.World, outcomes: Outcomes) -> None:
    more = {"logprobs": True, "top_logprobs": 20, "max_tokens": 400, "ignore_eos": True, "stream": True}

    async def stall() -> None:
        while True:
            async with clients.Line.open(world, buffer=4096) as line:
                line.writer.transport.pause_reading()
                await line.send(clients.written(chat("Tell me a long story.", **more), key=world.key))
                outcomes["sent, never read"] += 1
                await asyncio.sleep(3 * WRITE_TIMEOUT_S)

    await asyncio.gather(*(stall() for _ in range(40)))


async def half_requests(world: clients.World, outcomes: Outcomes) -> None:
    data = clients.written(chat("Hello"), key=world.key)

    async def stall() -> None:
        while True:
            async with clients.Line.open(world) as line:
                await line.send(data[: world.random.randrange(len(data))])
                outcomes["half sent"] += 1
                await asyncio.sleep(2 * READ_TIMEOUT_S)

    await asyncio.gather(*(stall() for _ in range(150)))


async def storm(world: clients.World, outcomes: Outcomes) -> None:
    """200 connections that send, read a little or nothing, and break off."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(20), clients.Line.open(world) as line:
                    body = chat("Tell me a story.", max_tokens=64, stream=world.random.random() < 0.7)
                    await line.send(clients.written(body, key=world.key))
                    if world.random.random() < 0.5:
                        await line.head()
                        outcomes.status(line)
                    else:
                        outcomes["aborted before the answer"] += 1
                    await asyncio.sleep(world.random.random())
                    line.reset()

    await asyncio.gather(*(one() for _ in range(200)))


ATTACKS: dict[str, Attack] = {
    it.__name__.replace("_", " "): it
    for it in (forms, long_drafts, ambiguous_grammars, many_choices, unread_answers, half_requests, storm)
}


async def forever(attack: Attack, world: clients.World, outcomes: Outcomes) -> None:
    """Goes on with an attack whose connections break."""
    while True:
        try:
            await attack(world, outcomes)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            outcomes[type(error).__name__] += 1
            await asyncio.sleep(0.2)


def own_world(name: str, key: str, port: int, keys: bool) -> clients.World:
    """One client's connections and random numbers."""
    own = random.Random(f"{name} {key}")
    return clients.World(port, TIMEOUT_S, READ_TIMEOUT_S, own, key=key if keys else None)


def be_hostile(name: str, port: int, keys: bool, heard: Connection) -> None:
    """A process's work: the attack until it is told to stop, then what became of its requests."""
    os.nice(19)
    outcomes = Outcomes()

    async def until_told() -> None:
        attacking = asyncio.create_task(forever(ATTACKS[name], own_world(name, "hostile", port, keys), outcomes))
        await asyncio.to_thread(heard.recv)
        attacking.cancel()

    asyncio.run(until_told())
    heard.send(outcomes)


async def watch(under_test: server.Server, peak: list[float]) -> None:
    while under_test.process.poll() is None:
        # A process that ends has no such line.
        with contextlib.suppress(OSError, KeyError):
            peak[0] = max(peak[0], under_test.memory_kib()["VmRSS"] / 1024)
        await asyncio.sleep(0.2)


async def measure(name: str, under_test: server.Server, seconds: float, keys: bool) -> Result:
    """One attack on a fresh server."""
    friend, idle, attacked = own_world(name, "polite", under_test.port, keys), Figures(), Figures()
    await polite(friend, Figures())
    for _ in range(IDLE_COUNT):
        await polite(friend, idle)
    at_rest = under_test.memory_kib()["VmRSS"] / 1024
    peak = [at_rest]
    watching = asyncio.create_task(watch(under_test, peak))
    spawn = multiprocessing.get_context("spawn")
    told, heard = spawn.Pipe()
    hostile = spawn.Process(target=be_hostile, args=(name, under_test.port, keys, heard), daemon=True)
    hostile.start()
    await asyncio.sleep(LEAD_S)
    until = time.monotonic() + seconds
    while time.monotonic() < until and under_test.process.poll() is None:
        try:
            await polite(friend, attacked)
        except (OSError, asyncio.IncompleteReadError) as error:
            attacked.refused[type(error).__name__] += 1
            await asyncio.sleep(0.2)
    stop = await asyncio.to_thread(under_test.stop, GRACE_S + STOP_MARGIN_S + 20)
    told.send("stop")
    outcomes = await asyncio.to_thread(told.recv)
    hostile.join()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return Result(name, idle, attacked, outcomes, (at_rest, peak[0]), stop)


def report(results: list[Result], seconds: float, keys: bool, command: list[str]) -> str:
    where = server.machine()
    words = [word.rpartition("/")[2] if "/" in word else word for word in command[:-2]]
    rows = []
    for it in results:
        idle, under = it.idle, it.attacked
        first, rate = it.slower()
        times = "–"
        if under.first_token_s:
            times = (
                f"{1e3 * statistics.median(idle.first_token_s):.0f} → {1e3 * statistics.median(under.first_token_s):.0f} "
                f"({first:.2f}×) | {statistics.median(idle.tokens_per_s):.1f} → "
                f"{statistics.median(under.tokens_per_s):.1f} ({rate:.2f}×)"
            )
        said = ", ".join(f"{count} × {what}" for what, count in it.outcomes.most_common(5))
        rest, peak = it.memory_mib
        held = "; ".join(it.failures())
        rows.append(
            f"| {it.name} | {times} | {len(under.first_token_s)} | {rest:.0f} → {peak:.0f} | {it.stop[1]:.1f} | {said} | "
            f"{f'**no**: {held}' if held else 'yes'} |"
        )
    apart = "an API key each" if keys else "no keys, so clients are told apart by connection"
    table = "\n".join(rows)
    limit = "" if keys else f"\n{WITHOUT_KEYS}"
    return f"""# Attacks: a polite client beside a hostile one

Made by `bench/serve/attack.py --seconds {seconds:g}{'' if keys else ' --anonymous'}`, {time.strftime("%Y-%m-%d", time.gmtime())}, commit {server.commit()},
{server.version(server.FORERUN)} (binary {server.digest(Path(server.FORERUN))}). Machine: {where["processor"]}, {where["threads"]} threads;
clients run on the same machine, hostile ones in a process of the lowest priority.

Server: `{" ".join(words)}`, {apart}. For each attack a fresh server: {IDLE_COUNT} answers of {ANSWER_LEN} tokens to the polite
client alone, then {seconds:g} s beside the attack, then SIGTERM while the attack goes on. Medians; *held* means: first token and
rate within {SLOWER_MAX:g} times of the idle figures, no polite request refused, memory within {MEMORY_MAX_MIB:g} MiB of idle, and exit code 0 within
`--shutdown-timeout` + {STOP_MARGIN_S:g} s ({GRACE_S + STOP_MARGIN_S:g} s).

| attack | first token, ms | tokens/s | answers | memory, MiB | exit after SIGTERM, s | what became of hostile requests | held |
|---|--:|--:|--:|--:|--:|---|---|
{table}
{limit}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each attack; default: %(default)s")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="this one alone; may be given again")
    parser.add_argument("--anonymous", action="store_true", help="without API keys")
    parser.add_argument("--verbose", action="store_true", help="every figure")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the report's folder")
    given = parser.parse_args()
    names = given.attack or list(ATTACKS)
    print(f"about {len(names) * (given.seconds + 15) / 60:.0f} minutes", flush=True)
    results, command = [], list[str]()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("polite\nhostile\n")
        for name in names:
            flags = ["-m", str(server.MODELS / TARGET), "-md", str(server.MODELS / DRAFT)]
            flags += ["-np", str(SLOTS), "-c", str(CONTEXT_LEN), "--max-queued-requests", str(QUEUE)]
            flags += ["--timeout", str(TIMEOUT_S), "--read-timeout", str(READ_TIMEOUT_S)]
            flags += ["--write-timeout", str(WRITE_TIMEOUT_S), "--shutdown-timeout", str(GRACE_S)]
            flags += [] if given.anonymous else ["--api-key-file", str(keys)]
            under_test = server.Server("forerun", server.forerun(*flags), Path(folder) / "log")
            command = under_test.command
            with server.serving([under_test]):
                result = asyncio.run(measure(name, under_test, given.seconds, not given.anonymous))
            results.append(result)
            first, rate = result.slower()
            held = "; ".join(result.failures()) or "held"
            print(f"{name}: first token {first:.2f}×, tokens {rate:.2f}× slower; {held}", flush=True)
            if given.verbose:
                print(f"  idle {result.idle}\n  attacked {result.attacked}\n  {result.outcomes}", flush=True)
    name = "attack-anonymous.md" if given.anonymous else "attack.md"
    (given.out / name).write_text(report(results, given.seconds, not given.anonymous, command), encoding="utf-8")
    return 1 if any(result.failures() for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
