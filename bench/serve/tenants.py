#!/usr/bin/env python3
"""Tenants beside each other: what a flood costs a polite one, whether shares are kept, what the prefix cache tells.

1. A polite tenant is measured alone, then beside another that floods the server: with many answers, with long
   prompts, with 16 answers a request. Its first token may take twice its idle median, and its tokens may come at no
   less than 0.8 times its share, which is half of its idle rate.
2. Both flood: their tokens must be within 20 % of their weights' shares.
3. One tenant sends a prompt, another the same one: with caches of their own the second must not be faster than a
   prompt that nobody sent. A cache that both share, and a salt in it, show that the clock would tell.

Floods come from a process of the lowest priority. Fails if any of this is not so.
"""

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import clients
import server

TARGET, DRAFT = "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"
SLOTS, CONTEXT_LEN = 4, 768
TIMEOUT_S = 60
# Tokens of a polite answer, measured answers before a flood, and how long a flood runs before it counts.
ANSWER_LEN, IDLE_COUNT, LEAD_S = 32, 12, 3.0
# Connections of a flood.
FLOOD = 24
FIRST_MAX, SHARE_OFF_MAX = 2.0, 0.2
# Prompts of each kind that the cache is probed with, how much faster one may seem by chance, and how many cached tokens
# may be those of the chat template, which a tenant has from its own requests.
PROBES, FASTER_MAX, OWN_MAX = 15, 0.8, 60
WORDS = "sea bread light winter train moon clock tea river stone paper glass wind salt road tower boat lamp".split()


def tenants(weights: tuple[int, int] = (1, 1), cache: bool = False) -> str:
    """The file of two tenants."""
    lines = ['metrics-key = "operator"']
    for name, weight in zip(("polite", "hostile"), weights):
        lines += [f"[tenant.{name}]", f'keys = ["{name}"]', f"weight = {weight}"]
        lines += ['cache = "both"'] if cache else []
    return "\n".join(lines) + "\n"


def text(world: clients.World, words: int) -> str:
    """Words that nobody sent before."""
    return " ".join(world.random.choice(WORDS) for _ in range(words))


@dataclass
class Figures:
    """What a tenant saw."""

    first_token_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    refused: int = 0

    def medians(self) -> tuple[float, float]:
        if not self.first_token_s:
            return float("inf"), 0.0
        return statistics.median(self.first_token_s), statistics.median(self.tokens_per_s)


async def answer(world: clients.World, figures: Figures, prompt: str, tokens: int, **more: Any) -> int:
    """One streamed answer of a fixed length; gives the tokens of its prompt that were cached."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}} | more
    started, first, last, usage = time.monotonic(), None, None, dict[str, Any]()
    async with asyncio.timeout(TIMEOUT_S + clients.PATIENCE_S), clients.Line.open(world) as line:
        await line.ask(body)
        if line.status != 200:
            figures.refused += 1
            await line.json()
            return 0
        async for event in line.events():
            if event is None or "error" in event:
                break
            if any(choice["delta"].get("content") for choice in event["choices"]):
                last = time.monotonic()
                first = first or last
            usage = event.get("usage") or usage
    if first is None or last is None or not usage:
        figures.refused += 1
        return 0
    figures.first_token_s.append(first - started)
    if last > first:
        figures.tokens_per_s.append((usage["completion_tokens"] - 1) / (last - first))
    return usage["prompt_tokens_details"]["cached_tokens"]


async def polite(world: clients.World, figures: Figures) -> None:
    await answer(world, figures, f"Write about this: {text(world, 80)}.", ANSWER_LEN)


Body = Callable[[clients.World], dict[str, Any]]


def asks(words: int, tokens: int, n: int = 1) -> Body:
    def body(world: clients.World) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"Write about this: {text(world, words)}."}]
        return {"messages": messages, "max_tokens": tokens, "n": n, "ignore_eos": True}

    return body


FLOODS: dict[str, Body] = {
    "answers": asks(words=20, tokens=200),
    "prompts": asks(words=400, tokens=1),
    "choices": asks(words=20, tokens=200, n=16),
}


def own_world(name: str, port: int) -> clients.World:
    return clients.World(port, TIMEOUT_S, TIMEOUT_S, random.Random(f"{name} {port}"), key=name)


def flood(name: str, kind: str, port: int, heard: Connection) -> None:
    """A process's work: a flood until it is told to stop."""
    os.nice(19)
    world = own_world(name, port)

    async def again() -> None:
        while True:
            try:
                async with clients.Line.open(world) as line:
                    await line.ask(FLOODS[kind](world))
                    async for _ in line.parts():
                        pass
                if line.status != 200:
                    await asyncio.sleep(0.05)
            except (OSError, asyncio.IncompleteReadError, ValueError):
                await asyncio.sleep(0.2)

    async def until_told() -> None:
        flooding = [asyncio.create_task(again()) for _ in range(FLOOD)]
        await asyncio.to_thread(heard.recv)
        for task in flooding:
            task.cancel()

    asyncio.run(until_told())


class Flood:
    """A tenant that floods the server, for as long as it is entered."""

    def __init__(self, name: str, kind: str, port: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.told, heard = spawn.Pipe()
        self.process = spawn.Process(target=flood, args=(name, kind, port, heard), daemon=True)

    def __enter__(self) -> None:
        self.process.start()
        time.sleep(LEAD_S)

    def __exit__(self, *_: object) -> None:
        self.told.send("stop")
        self.process.join(10)


def generated(under_test: server.Server) -> dict[str, float]:
    """Tokens decoded for each tenant, by the server's own count."""
    request = urllib.request.Request(f"{under_test.url}/metrics", headers={"authorization": "Bearer operator"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        shown = answer.read().decode()
    found = re.findall(r'forerun:tenant_generation_tokens_total\{tenant="(\w+)"\} (\S+)', shown)
    return {name: float(value) for name, value in found}


class Run:
    """Servers one after the other, and what was found."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.rows, self.failures, self.command = list[str](), list[str](), list[str]()

    def start(self, file: str) -> server.Server:
        path = self.folder / "tenants.toml"
        path.write_text(file)
        flags = ["-m", str(server.MODELS / TARGET), "-md", str(server.MODELS / DRAFT), "-np", str(SLOTS)]
        flags += ["-c", str(CONTEXT_LEN), "--timeout", str(TIMEOUT_S), "--shutdown-timeout", "2"]
        under_test = server.Server("forerun", server.forerun(*flags, "--tenants", str(path)), self.folder / "log")
        self.command = under_test.command
        return under_test

    def say(self, row: str, failed: str | None) -> None:
        print(row + (f"  NOT: {failed}" if failed else ""), flush=True)
        self.rows.append(f"| {row} | {f'**no**: {failed}' if failed else 'yes'} |")
        self.failures += [failed] if failed else []

    def beside_floods(self) -> None:
        for kind in FLOODS:
            under_test = self.start(tenants())
            with server.serving([under_test]):
                world, idle, beside = own_world("polite", under_test.port), Figures(), Figures()
                asyncio.run(several(world, Figures(), count=2))
                asyncio.run(several(world, idle, count=IDLE_COUNT))
                with Flood("hostile", kind, under_test.port):
                    asyncio.run(several(world, beside, until=time.monotonic() + self.seconds))
            (idle_first, idle_rate), (first, rate) = idle.medians(), beside.medians()
            times, of_share = first / idle_first, rate / (idle_rate / 2)
            failed = []
            if times > FIRST_MAX:
                failed.append(f"first token {times:.2f} times its idle median")
            if of_share < 1 - SHARE_OFF_MAX:
                failed.append(f"{of_share:.2f} of its share of the rate")
            if beside.refused:
                failed.append(f"{beside.refused} polite requests were refused")
            row = f"{kind} | {1e3 * idle_first:.0f} → {1e3 * first:.0f} ms ({times:.2f}×) | "
            row += f"{idle_rate:.1f} → {rate:.1f} tokens/s ({of_share:.2f} of its share) | {len(beside.first_token_s)}"
            self.say(row, "; ".join(failed) or None)

    def shares(self) -> None:
        for weights in ((1, 1), (3, 1)):
            under_test = self.start(tenants(weights))
            with server.serving([under_test]):
                port = under_test.port
                with Flood("polite", "answers", port), Flood("hostile", "answers", port):
                    before = generated(under_test)
                    time.sleep(self.seconds)
                    after = generated(under_test)
            tokens = {name: after[name] - before[name] for name in after}
            share, expected = tokens["polite"] / sum(tokens.values()), weights[0] / sum(weights)
            off = abs(share / expected - 1)
            row = f"weights {weights[0]} to {weights[1]} | {tokens['polite']:.0f} and {tokens['hostile']:.0f} tokens | "
            row += f"{share:.2f} instead of {expected:.2f} | –"
            self.say(row, f"{100 * off:.0f} % off its share" if off > SHARE_OFF_MAX else None)

    def timing(self) -> None:
        for name, cache, salt in (
            ("caches of their own", False, False),
            ("one cache, a salt each", True, True),
            ("one cache (the clock tells)", True, False),
        ):
            under_test = self.start(tenants(cache=cache))
            with server.serving([under_test]):
                same, fresh, cached = asyncio.run(probed(under_test.port, salt))
            faster = same / fresh
            tells = cache and not salt
            failed = None
            if tells and (faster > FASTER_MAX or cached <= OWN_MAX):
                failed = "the probe does not see what a shared cache tells, so it shows nothing"
            if not tells and (faster < FASTER_MAX or cached > OWN_MAX):
                failed = f"another's prompt comes back {faster:.2f} times as fast, {cached} tokens cached"
            row = f"{name} | {1e3 * fresh:.0f} ms for a new prompt | {1e3 * same:.0f} ms for the other's ({faster:.2f}×) | "
            self.say(row + f"{cached}", failed)


async def several(world: clients.World, figures: Figures, count: int | None = None, until: float = 0.0) -> None:
    """Polite answers one after the other, so many or until then."""
    while count is None or count > 0:
        if count is None and time.monotonic() > until:
            return
        await polite(world, figures)
        count = None if count is None else count - 1


async def probed(port: int, salt: bool) -> tuple[float, float, int]:
    """First token of prompts that the other tenant sent, and of new ones; and most cached tokens that a probe was told of."""
    victim, probe = own_world("polite", port), own_world("hostile", port)
    same, fresh, told = Figures(), Figures(), 0
    for _ in range(PROBES):
        secret = f"Keep this to yourself: {text(victim, 250)}."
        await answer(victim, Figures(), secret, 2, **({"cache_salt": "polite"} if salt else {}))
        salted = {"cache_salt": "hostile"} if salt else {}
        told = max(told, await answer(probe, same, secret, 2, **salted))
        await answer(probe, fresh, f"Keep this to yourself: {text(probe, 250)}.", 2, **salted)
    return statistics.median(same.first_token_s), statistics.median(fresh.first_token_s), told


def report(run: Run) -> str:
    where = server.machine()
    words = [Path(word).name if word.startswith("/") else word for word in run.command]
    del words[words.index("--port") : words.index("--port") + 2]
    rows = "\n".join(run.rows)
    return f"""# Tenants beside each other

Made by `bench/serve/tenants.py --seconds {run.seconds:g}`, {time.strftime("%Y-%m-%d", time.gmtime())}, commit {server.commit()},
{server.version(server.FORERUN)} (binary {server.digest(Path(server.FORERUN))}). Machine: {where["processor"]}, {where["threads"]} threads;
clients run on the same machine, floods in processes of the lowest priority.

Server: `{" ".join(words)}`, two tenants. Medians. *Floods*: {IDLE_COUNT} answers of {ANSWER_LEN} tokens to a tenant alone, then
{run.seconds:g} s beside another that floods the server over {FLOOD} connections with long answers, with long prompts, or with 16
answers a request; its share is half of its idle rate. *Weights*: both flood. *Caches*: {PROBES} times one tenant sends a
prompt and the other the same one; the last column is how many of its tokens the other was told were cached.

| what | first | second | answers, cached | held |
|---|---|---|--:|---|
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each flood; default: %(default)s")
    parser.add_argument("--only", choices=("floods", "shares", "timing"), action="append", help="may be given again")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the report's folder")
    given = parser.parse_args()
    parts = given.only or ["floods", "shares", "timing"]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), given.seconds)
        steps = {"floods": run.beside_floods, "shares": run.shares, "timing": run.timing}
        for part in parts:
            steps[part]()
    if not given.only:
        (given.out / "tenants.md").write_text(report(run), encoding="utf-8")
    return 1 if run.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
