#!/usr/bin/env python3
"""Load test: `forerun serve` with and without speculation beside llama-server, taking turns.

Every way serves the same closed-loop users: a user sends a request, reads its stream to the end,
and sends the next. The users are locust's; what is made of their readings is in `report.py`.
"""

import argparse
import json
import os
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import gevent.event
from locust import FastHttpUser, task
from locust.env import Environment
from locust.exception import StopUser

import report
import server

SLOTS = 8
PROMPTS = server.REPOSITORY / "bench/prompts"
# Some thirty tokens. On a slow machine, longer prompts leave little time for what is made of them.
CHAT_CHARACTERS_MAX = 120


@dataclass(frozen=True)
class Pair:
    """A target with what drafts for it, and what its users ask for."""

    target: str
    draft: str | None
    context_len: int
    output_len: int
    temperature: float
    # Every other request is an edit of code, the others are chats.
    edits: bool
    forerun_flags: tuple[str, ...]
    llama_drafts: tuple[str, ...]


PAIRS = {
    "edits": Pair(
        "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
        None,
        *(1024, 96, 0.7, True),
        ("--spec-type", "suffix"),
        (
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", "6", "--spec-ngram-simple-size-m", "31"),
        ),
    ),
    "widened": Pair(
        "SmolLM2-widened-x16.Q8_0.gguf",
        "SmolLM2-135M-Instruct.Q4_0.gguf",
        *(512, 40, 1.0, False),
        (),
        (
            *("--spec-type", "draft-simple"),
            *("--spec-draft-n-max", "3", "--spec-draft-p-min", "0.5"),
        ),
    ),
}
RAW = Path.home() / ".cache/forerun/load"


@dataclass(frozen=True)
class Level:
    """So many users; in a block each way answers so many requests, and there are so many blocks."""

    users: int
    requests: int
    blocks: int


LEVELS = [
    Level(1, 4, 3),
    Level(2, 4, 3),
    Level(4, 8, 2),
    Level(8, 8, 3),
    Level(16, 16, 2),
]
QUICK = [Level(1, 1, 2), Level(4, 4, 2)]

# What llama-server was found to be fastest with here; `--tune` compares it with others. No prompt
# comes twice, so its store of old prompts in memory (-cram) would only cost time.
LLAMA_BEST = ("--poll", "0", "-cram", "0")
TUNE = {
    "its defaults": ("--spec-draft-p-min", "0"),
    "no polling": (*LLAMA_BEST, "--spec-draft-p-min", "0"),
    "and likely drafts only, 0.5": LLAMA_BEST,
    "and likely drafts only, 0.75": (*LLAMA_BEST, "--spec-draft-p-min", "0.75"),
    "and drafts of 2 at most": (*LLAMA_BEST, "--spec-draft-n-max", "2"),
    "and one pool for all sequences": (*LLAMA_BEST, "-kvu"),
    "and drafts drawn outside the graph": (*LLAMA_BEST, "--no-spec-draft-backend-sampling"),
}


@dataclass(frozen=True)
class Way:
    """A server, and what requests to it say beside what all say."""

    name: str
    server: server.Server
    extra: dict[str, Any]


class Block:
    """Requests that a way's users share, and what they read."""

    def __init__(self, bodies: list[dict[str, Any]]) -> None:
        self.jobs, self.count = deque(bodies), len(bodies)
        self.readings: list[dict[str, Any]] = []
        self.go, self.over = gevent.event.Event(), gevent.event.Event()

    def read(self, reading: dict[str, Any]) -> None:
        self.readings.append(reading)
        if len(self.readings) == self.count:
            self.over.set()


def reader(way: Way, block: Block) -> type[FastHttpUser]:
    """The users of a block: they begin together, and end when no request is left."""

    class Reader(FastHttpUser):
        host = way.server.url
        network_timeout = connection_timeout = 600.0

        @task
        def ask(self) -> None:
            block.go.wait()
            if not block.jobs:
                raise StopUser
            body = block.jobs.popleft() | way.extra
            started = time.perf_counter()
            events: list[tuple[float, bytes]] = []
            # A server may close a line after an answer (llama-server does): the next request on it fails before it
            # is sent, and is sent again.
            for _ in range(2):
                status, error = 0, None
                try:
                    path = "/v1/chat/completions"
                    with self.client.post(path, json=body, stream=True, catch_response=True) as answer:
                        status = answer.status_code
                        # Events are only noted here; to take them apart would delay the next.
                        while line := answer.stream.readline(b"\n\n") if status == 200 else b"":
                            events.append((time.perf_counter() - started, line))
                        answer.success() if status == 200 else answer.failure(f"status {status}")
                except Exception as broken:  # Whatever breaks a request is a reading too.
                    error = repr(broken)
                if status:
                    break
            ended = time.perf_counter()
            about = {"status": status, "error": error, "ended": ended, "seconds": ended - started}
            block.read({"events": events, **about})

    return Reader


def run_users(way: Way, users: int, bodies: list[dict[str, Any]]) -> dict[str, Any]:
    """Has so many users send these requests, and gives what they read."""
    block = Block(bodies)
    environment = Environment(user_classes=[reader(way, block)])
    runner = environment.create_local_runner()
    runner.start(users, spawn_rate=users)
    while runner.user_count < users:
        gevent.sleep(0.01)
    cpu, own = way.server.cpu_s(), time.process_time()
    started = time.perf_counter()
    block.go.set()
    block.over.wait()
    seconds = max(reading["ended"] for reading in block.readings) - started
    used = {"server_cpu": way.server.cpu_s() - cpu, "client_cpu": time.process_time() - own}
    while runner.user_count:
        gevent.sleep(0.01)
    runner.quit()
    readings = [taken_apart(reading) for reading in block.readings]
    return {"seconds": seconds, **used, "requests": readings}


def taken_apart(reading: dict[str, Any]) -> dict[str, Any]:
    """What a stream says: when how many tokens came, and its sums."""
    chunks: list[tuple[float, int]] = []
    said = {"tokens": 0, "done": False, "error": reading["error"]}
    seen = 0
    for at, line in reading["events"]:
        for data in (part[5:].strip() for part in line.split(b"\n") if part.startswith(b"data:")):
            if data == b"[DONE]":
                said["done"] = True
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                said["error"] = json.dumps(chunk["error"])
            timings = chunk.get("timings") or {}
            made = timings.get("predicted_n", seen)
            parts = [choice.get("delta", {}).get("content") for choice in chunk.get("choices", [])]
            if made > seen and any(parts):
                chunks.append((round(at, 5), made - seen))
                seen = made
            if usage := chunk.get("usage"):
                details = usage.get("prompt_tokens_details") or {}
                said |= {
                    "tokens": usage["completion_tokens"],
                    "prompt": usage["prompt_tokens"],
                    "cached": details.get("cached_tokens", timings.get("cache_n", 0)),
                }
            if "draft_n" in timings:
                said |= {"drafted": timings["draft_n"], "accepted": timings["draft_n_accepted"]}
    return said | {"status": reading["status"], "seconds": reading["seconds"], "chunks": chunks}


def body(prompt: str, pair: Pair, output_len: int, number: int) -> dict[str, Any]:
    """A request. Its number, always of as many tokens, keeps caches from knowing the prompt."""
    return {
        "messages": [{"role": "user", "content": f"{number:06}: {prompt}"}],
        "max_tokens": output_len,
        "temperature": pair.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
    }


class Bodies:
    """Makes requests: prompts in an order fixed by the seed, numbers never used before."""

    def __init__(self, pair: Pair, seed: int) -> None:
        files = sorted(PROMPTS.glob("*.jsonl"))
        rows = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        lines = [line for line in map(json.loads, rows) if "prompt" in line]
        prompts = dict.fromkeys(line["prompt"] for line in lines)
        chats = [it for it in prompts if len(it) <= CHAT_CHARACTERS_MAX]
        edits = [line["prompt"] for line in lines if line["task"] == "edit"]
        # In turns, as many of the one as of the other.
        self.kinds = [edits, chats] if pair.edits else [chats]
        self.pair = pair
        self.random = random.Random(seed)
        self.numbers = self.random.sample(range(1_000_000), 200_000)

    def choose(self, count: int) -> list[str]:
        """So many prompts, none twice while others are left."""
        each = -(-count // len(self.kinds))
        drawn = [self.random.sample(kind, len(kind)) for kind in self.kinds]
        chosen = [kind[turn % len(kind)] for turn in range(each) for kind in drawn]
        return chosen[:count]

    def make(self, prompts: list[str], output_len: int | None = None) -> list[dict[str, Any]]:
        """Requests with these prompts."""
        output_len = output_len or self.pair.output_len
        return [body(prompt, self.pair, output_len, self.numbers.pop()) for prompt in prompts]


def common(pair: Pair, threads: int, drafts: bool) -> list[str]:
    """What both servers are told in the same words."""
    files = ["-m", str(server.MODELS / pair.target)]
    files += ["-md", str(server.MODELS / pair.draft)] if pair.draft and drafts else []
    return [*files, "-np", str(SLOTS), "-t", str(threads)]


def forerun(pair: str, threads: int) -> server.Server:
    """`forerun serve`: a context is a request's here."""
    own = PAIRS[pair]
    flags = [*common(own, threads, True), "-c", str(own.context_len), "--alias", pair]
    return server.Server("forerun", server.forerun(*flags, *own.forerun_flags), RAW / f"forerun-{pair}.log")


def llama(pair: str, threads: int, flags: tuple[str, ...], drafts: bool) -> server.Server:
    """llama-server: a context is that of all slots together here."""
    own = PAIRS[pair]
    command = [server.LLAMA_SERVER, *common(own, threads, drafts)]
    command += ["-c", str(own.context_len * SLOTS), "-fa", "on", "--alias", pair]
    command += own.llama_drafts if drafts else ()
    kind = "drafts" if drafts else "plain"
    return server.Server("llama-server", [*command, *flags], RAW / f"llama-{pair}-{kind}.log")


def ways(pair: str, names: list[str], threads: int) -> list[Way]:
    """The ways to be measured, with their servers begun one after the other: what passes cost is measured at the start."""
    made: dict[str, server.Server] = {}

    def once(name: str, start: Any) -> server.Server:
        if name not in made:
            made[name] = start()
            made[name].wait()
        return made[name]

    plain = {"speculative": {"enabled": False}}
    of = {
        "forerun": lambda: ("forerun", lambda: forerun(pair, threads), {}),
        "forerun-plain": lambda: ("forerun", lambda: forerun(pair, threads), plain),
        "llama": lambda: ("llama", lambda: llama(pair, threads, LLAMA_BEST, True), {}),
        "llama-plain": lambda: ("plain", lambda: llama(pair, threads, LLAMA_BEST, False), {}),
    }
    chosen = [(name, *of[name]()) for name in names]
    try:
        return [Way(name, once(key, start), extra) for name, key, start, extra in chosen]
    except BaseException:
        for begun in made.values():
            begun.stop()
        raise


class Clock:
    """Says how far a run is and how long it may still take."""

    def __init__(self, tokens: int) -> None:
        self.started, self.tokens, self.made = time.monotonic(), tokens, 0

    def tick(self, what: str, block: dict[str, Any]) -> None:
        made = sum(request["tokens"] for request in block["requests"])
        self.made += made
        spent = time.monotonic() - self.started
        left = spent * (self.tokens - self.made) / max(self.made, 1)
        say(
            f"{what}: {made / block['seconds']:6.1f} tokens/s; "
            f"{spent / 60:.1f} min gone, about {left / 60:.0f} left"
        )


def say(line: str) -> None:
    print(line, flush=True)


def idle_shares(servers: list[server.Server], seconds: float = 3.0) -> dict[str, float]:
    """How much of a core each server takes while nobody asks it."""
    before = [it.cpu_s() for it in servers]
    gevent.sleep(seconds)
    pairs = zip(servers, before, strict=True)
    return {Path(it.log).stem: (it.cpu_s() - was) / seconds for it, was in pairs}


def measure(pair: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs all levels for one pair of models."""
    levels = QUICK if arguments.quick else LEVELS
    levels = [level for level in levels if level.users in arguments.users]
    own = PAIRS[pair]
    bodies = Bodies(own, arguments.seed)
    all_ways = ways(pair, arguments.ways, arguments.threads)
    servers = list({id(way.server): way.server for way in all_ways}.values())
    requests = sum(level.requests * level.blocks for level in levels)
    clock = Clock(requests * own.output_len * len(all_ways))
    say(f"{pair}: {requests} requests of {own.output_len} tokens for each of {len(all_ways)} ways")
    blocks: list[dict[str, Any]] = []
    with server.serving(servers):
        for way in all_ways:
            run_users(way, 4, bodies.make(bodies.choose(4), own.output_len // 2))
        idle = idle_shares(servers)
        clock.started = time.monotonic()
        for level in levels:
            for number in range(level.blocks):
                prompts = bodies.choose(level.requests)
                for turn in range(len(all_ways)):
                    way = all_ways[(turn + number) % len(all_ways)]
                    block = run_users(way, level.users, bodies.make(prompts))
                    about = {"way": way.name, "users": level.users, "block": number}
                    blocks.append(about | block)
                    clock.tick(f"{level.users:2} users, block {number + 1}, {way.name:13}", block)
    return {
        "pair": pair,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "quick": arguments.quick,
        "seconds": time.monotonic() - clock.started,
        "settings": {
            "slots": SLOTS,
            "context": own.context_len,
            "output": own.output_len,
            "temperature": own.temperature,
            "threads": arguments.threads,
            "seed": arguments.seed,
            "prompts": {"edits": len(bodies.kinds[0]) if own.edits else 0, "chats": len(bodies.kinds[-1])},
            "characters": CHAT_CHARACTERS_MAX,
        },
        "commands": {way.name: readable(way) for way in all_ways},
        "about": about_run(pair),
        "idle": idle,
        "blocks": blocks,
    }


def readable(way: Way) -> str:
    """A way's command, without the folders and the port."""
    words = [word.rpartition("/")[2] if "/" in word else word for word in way.server.command[:-2]]
    extra = f", requests with `{json.dumps(way.extra)}`" if way.extra else ""
    return f"`{' '.join(words)}`{extra}"


def about_run(pair: str) -> dict[str, Any]:
    """What was run and where."""
    own = PAIRS[pair]
    files = [server.MODELS / name for name in (own.target, own.draft) if name]
    programs = {"forerun": server.FORERUN, "llama-server": server.LLAMA_SERVER}
    return {
        "machine": server.machine(),
        "commit": server.commit(),
        "versions": {name: server.version(path) for name, path in programs.items()},
        "files": {path.name: server.digest(path) for path in files},
        "programs": {name: server.digest(Path(path)) for name, path in programs.items()},
    }


def tune(pair: str, arguments: argparse.Namespace) -> None:
    """Compares settings of llama-server, taking turns; prints tokens/s at each number of users."""
    named = {
        name: Way(name, llama(pair, arguments.threads, flags, True), {})
        for name, flags in TUNE.items()
    }
    bodies = Bodies(PAIRS[pair], arguments.seed)
    rates: dict[tuple[str, int], list[float]] = {}
    with server.serving([way.server for way in named.values()]):
        for way in named.values():
            run_users(way, 2, bodies.make(bodies.choose(2), 8))
        for users in (1, SLOTS):
            for _ in range(1 if arguments.quick else 3):
                prompts = bodies.choose(users if users > 1 else 2)
                for name, way in named.items():
                    block = run_users(way, users, bodies.make(prompts))
                    made = sum(request["tokens"] for request in block["requests"])
                    rates.setdefault((name, users), []).append(made / block["seconds"])
                    say(f"{users} users, {name}: {made / block['seconds']:.1f} tokens/s")
    for (name, users), all_rates in rates.items():
        say(f"{users} users: {sorted(all_rates)[len(all_rates) // 2]:6.1f} tokens/s with {name}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PAIRS, help="one pair of models; otherwise both")
    parser.add_argument("--quick", action="store_true", help="1 and 4 users; a few minutes")
    parser.add_argument("--tune", action="store_true", help="compare settings of llama-server")
    parser.add_argument("--report", action="store_true", help="write the report again, run nothing")
    parser.add_argument("--ways", nargs="+", choices=report.WAYS, default=list(report.WAYS))
    parser.add_argument("--users", nargs="+", type=int, default=[level.users for level in LEVELS])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="the report's folder")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    RAW.mkdir(parents=True, exist_ok=True)
    pairs = [given.only] if given.only else list(PAIRS)
    for pair in [] if given.report else pairs:
        if given.tune:
            tune(pair, given)
            continue
        readings = measure(pair, given)
        (RAW / f"{pair}.json").write_text(json.dumps(readings))
    if not given.tune:
        report.write([RAW / f"{pair}.json" for pair in PAIRS], given.out)


if __name__ == "__main__":
    main()
