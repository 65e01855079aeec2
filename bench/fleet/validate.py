#!/usr/bin/env python3
"""A fleet that is measured beside the same fleet as `forerun simulate` has it: writes bench/fleet/validation.md.

Two replicas with a thread each, behind SMG, which must be installed (`pip install smg`). FORERUN_BIN is the
binary. First the cost of passes and the acceptance are measured by `forerun bench`, on both cores at once as the
replicas will have them; then users ask the fleet. Wants an idle machine of two cores.
"""

import argparse
import http.client
import json
import os
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "bench/serve"))
import server  # noqa: E402

RAW = Path.home() / ".cache/forerun/fleet"
TARGET, DRAFT = "SmolLM2-grown-x8.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"
REPLICAS, SLOTS, CONTEXT_LEN = 2, 4, 512
OUTPUT_LEN, DRAFT_LEN = 40, 4
USERS = [2, 4, 8]
# As in docs/deploy/smg.md.
LOAD_INTERVAL_S = 1
PROMPT_CHARACTERS_MAX = 300
MODES: dict[str, dict[str, Any]] = {
    "off": {"enabled": False},
    "fixed": {"enabled": True, "length": DRAFT_LEN, "rule": "block"},
}
# How far a figure may be off.
TOLERANCE = 0.2


@dataclass
class Request:
    """What a user saw of a request."""

    sent: float
    first: float
    ended: float
    prompt: int
    cached: int
    tokens: int


def measure_passes(seconds: int) -> Path:
    """Costs and acceptance of a replica, while its neighbour works too."""
    models = [str(server.MODELS / name) for name in (TARGET, DRAFT)]
    common = [server.FORERUN, "bench", "-m", models[0], "--draft", models[1], "-t", "1", "--verify", "block", "--temp", "1"]
    common += ["--spec-draft-n-max", str(DRAFT_LEN), "-n", str(OUTPUT_LEN), "--tasks", "mt_bench,qa", "--force"]
    common += ["--time-limit", f"{seconds}s"]
    pages = [RAW / f"passes-{index}.html" for index in range(REPLICAS)]
    running = [subprocess.Popen([*common, "--out", str(page)], stderr=subprocess.DEVNULL) for page in pages]
    if any(process.wait() for process in running):
        sys.exit("forerun bench failed")
    return pages[0].with_suffix(".json")


def gateway(urls: list[str]) -> server.Server:
    """SMG as docs/deploy/smg.md has it."""
    guide = (REPOSITORY / "docs/deploy/smg.md").read_text(encoding="utf-8")
    found = re.search(r"^smg launch (.*?)\n```", guide, re.DOTALL | re.MULTILINE)
    assert found, "docs/deploy/smg.md has no command"
    flags = found[1].replace("\\\n", " ").split()
    workers = RAW / "workers.json"
    workers.write_text(json.dumps({"version": 1, "workers": [{"url": url} for url in urls]}))
    flags[flags.index("--discovery-file") + 1] = str(workers)
    at = flags.index("--port")
    del flags[at : at + 2]
    metrics = str(server.free_port())
    binary = shutil.which("smg") or sys.exit("smg is not installed")
    return server.Server("smg", [binary, "launch", *flags, "--prometheus-port", metrics], RAW / "smg.log")


def prompts() -> list[str]:
    lines = (REPOSITORY / "bench/prompts/spec_bench.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["prompt"] for line in lines]
    return [text for text in texts if len(text) <= PROMPT_CHARACTERS_MAX]


def refusals_per_second(url: str, count: int = 2000, users: int = 8) -> float:
    """How many requests a second get through that a replica refuses at once: what is left is the way there."""
    body = {"model": "fleet", "messages": [{"role": "user", "content": "Hello."}], "no_such_field": 1}
    address = urllib.parse.urlsplit(url)

    def user() -> None:
        line = http.client.HTTPConnection(address.hostname or "", address.port)
        for _ in range(count // users):
            line.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = line.getresponse()
            answer.read()
            assert answer.status == 400, answer.status

    threads = [threading.Thread(target=user) for _ in range(users)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.monotonic() - started)


def ask(url: str, prompt: str, speculative: dict[str, Any]) -> Request:
    body = {
        "model": "fleet",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_LEN,
        "ignore_eos": True,
        "temperature": 1,
        "top_k": -1,
        "top_p": 1,
        "min_p": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculative": speculative,
    }
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", data, {"content-type": "application/json"})
    sent = time.monotonic()
    first, usage = 0.0, {}
    with urllib.request.urlopen(request, timeout=600) as stream:
        for line in stream:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                sys.exit(f"a request failed: {chunk}")
            said = any(choice["delta"].get("content") for choice in chunk["choices"])
            first = first or (time.monotonic() if said else 0.0)
            usage = chunk.get("usage") or usage
    ended = time.monotonic()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Request(sent, first or ended, ended, usage["prompt_tokens"], cached, usage["completion_tokens"])


def load(url: str, users: int, speculative: dict[str, Any], seconds: float, texts: list[str]) -> list[Request]:
    """Users that ask one request after the other, for so long."""
    over = time.monotonic() + seconds
    requests: list[Request] = []

    def user(number: int) -> None:
        turn = 0
        while time.monotonic() < over:
            # None begins as another did: the gateway would send it where that one was, however busy.
            prompt = f"{secrets.token_hex(4)}: {texts[(number + turn * users) % len(texts)]}"
            requests.append(ask(url, prompt, speculative))
            turn += 1

    threads = [threading.Thread(target=user, args=(number,)) for number in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return requests


def p99(times: list[float]) -> float:
    ordered = sorted(times)
    return ordered[max(0, -(-99 * len(ordered) // 100) - 1)]


@dataclass
class Figures:
    """What is compared."""

    rate: float
    first_p50: float
    request_p50: float
    request_p99: float


def figures(requests: list[Request], warm_up: float, seconds: float) -> Figures:
    """Of the requests that were sent after the warm-up; tokens count where they were made."""
    begun = min(it.sent for it in requests) + warm_up
    over = begun - warm_up + seconds
    kept = [it for it in requests if it.sent >= begun]
    tokens = 0.0
    for it in requests:
        inside = max(0.0, min(it.ended, over) - max(it.first, begun))
        tokens += it.tokens * inside / (it.ended - it.first) if it.ended > it.first else 0.0
    whole = [it.ended - it.sent for it in kept]
    first = statistics.median(it.first - it.sent for it in kept)
    return Figures(tokens / (over - begun), first, statistics.median(whole), p99(whole))


def accepted_by_position(urls: list[str]) -> list[float]:
    """Rounds with drafts, and those of them that accepted at least so many tokens; since the replicas began."""
    counts = [0.0] * (1 + DRAFT_LEN)
    for url in urls:
        with urllib.request.urlopen(url + "/metrics") as page:
            for line in page.read().decode().splitlines():
                if line.startswith("vllm:spec_decode_num_drafts_total"):
                    counts[0] += float(line.rsplit(" ", 1)[1])
                elif found := re.match(r'vllm:spec_decode_num_accepted_tokens_per_pos_total{.*position="(\d+)"} (\S+)', line):
                    counts[1 + int(found[1])] += float(found[2])
    return counts


def simulated(report: Path, users: int, lengths: Path, shared: int, accepted: list[float] | None) -> dict[str, Figures]:
    command = [server.FORERUN, "simulate", str(report), "--replicas", str(REPLICAS), "--parallel", str(SLOTS), "--json"]
    command += ["--users", str(users), "--lengths", str(lengths), "--shared-len", str(shared), "--seconds", "2000"]
    command += ["--load-interval", str(LOAD_INTERVAL_S)]
    if accepted:
        command += ["--accepted", ",".join(f"{share:.4f}" for share in accepted)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        row["drafting"]: Figures(
            row["tokens_per_second"], row["first_token_s"][0], row["request_s"][0], row["request_s"][1]
        )
        for row in answer["fleets"]
    }


def row(users: int, mode: str, real: Figures, model: Figures) -> tuple[str, bool]:
    def pair(measured: float, simulated: float) -> str:
        return f"{measured:.2f} | {simulated:.2f} | {simulated / measured:.2f}"

    fine = all(abs(ratio - 1) <= TOLERANCE for ratio in (model.rate / real.rate, model.request_p99 / real.request_p99))
    text = f"| {users} | {mode} | {pair(real.rate, model.rate)} | {pair(real.request_p99, model.request_p99)} "
    text += f"| {pair(real.request_p50, model.request_p50)} | {pair(real.first_p50, model.first_p50)} "
    return text + f"| {'yes' if fine else '**no**'} |\n", fine


def write(rows: list[tuple[str, bool]], ways: tuple[float, float], warm_up: float, seconds: float, profile: str) -> None:
    text = f"""# A simulated fleet against a measured one

Made by `just fleet` on {time.strftime("%Y-%m-%d", time.gmtime())}: {REPLICAS} replicas with one thread and {SLOTS} slots each behind SMG on one
machine of {os.cpu_count()} threads, a {profile} build. Target {TARGET}, drafter {DRAFT} ("grown": made deeper by blocks that change nothing). Users
ask one request after the other for {seconds:.0f} s, of which the first {warm_up:.0f} do not count; answers of {OUTPUT_LEN} tokens at temperature 1.
*Drafts*: `off`, or `fixed` at {DRAFT_LEN}, judged by block. The simulator knows what passes took when `forerun bench` measured them on both cores at
once, the lengths of the prompts, none of which begins as another does, and how many drafted tokens were accepted. Aim: tokens a second and the 99th percentile of request times within {100 * TOLERANCE:.0f} %.

| users | drafts | tokens/s | simulated | ratio | request p99, s | simulated | ratio | request p50, s | simulated | ratio | first token p50, s | simulated | ratio | within |
|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|
{"".join(text for text, _ in rows)}
Requests that a replica refuses at once, a second, with client, gateway and replicas on the same cores: {ways[0]:.0f} through SMG,
{ways[1]:.0f} to a replica alone. The gateway takes {1e6 * (1 / ways[0] - 1 / ways[1]):.0f} µs of these cores for each.
"""
    (REPOSITORY / "bench/fleet/validation.md").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of each load")
    parser.add_argument("--bench-seconds", type=int, default=180, help="of measuring passes")
    parser.add_argument("--passes", type=Path, help="a report of an earlier run instead")
    arguments = parser.parse_args()
    RAW.mkdir(parents=True, exist_ok=True)
    report = arguments.passes or measure_passes(arguments.bench_seconds)
    profile = json.loads(report.read_text(encoding="utf-8"))["config"]["build"]["profile"]
    warm_up = 0.2 * arguments.seconds
    flags = ["-m", str(server.MODELS / TARGET), "-md", str(server.MODELS / DRAFT), "-t", "1", "-np", str(SLOTS)]
    flags += ["-c", str(CONTEXT_LEN), "-a", "fleet"]
    replicas = [server.Server(f"replica-{n}", server.forerun(*flags), RAW / f"replica-{n}.log") for n in range(REPLICAS)]
    rows: list[tuple[str, bool]] = []
    texts = prompts()
    with server.serving(replicas):
        router = gateway([it.url for it in replicas])
        with server.serving([router]):
            time.sleep(3)
            ways = (refusals_per_second(router.url), refusals_per_second(replicas[0].url))
            for users in USERS:
                for mode, speculative in MODES.items():
                    before = accepted_by_position([it.url for it in replicas])
                    requests = load(router.url, users, speculative, arguments.seconds, texts)
                    after = accepted_by_position([it.url for it in replicas])
                    reached = [now - was for now, was in zip(after, before)]
                    accepted = [more / some for some, more in zip(reached, reached[1:])] if reached[-1] else None
                    (RAW / f"load-{users}-{mode}.json").write_text(json.dumps([asdict(it) for it in requests]))
                    # What all prompts share is what a replica that has seen any other has cached.
                    shared = min(it.cached for it in sorted(requests, key=lambda it: it.sent)[users:])
                    lengths = RAW / "lengths.txt"
                    lengths.write_text("".join(f"{it.prompt} {it.tokens}\n" for it in requests))
                    real = figures(requests, warm_up, arguments.seconds)
                    model = simulated(report, users, lengths, shared, accepted)[mode]
                    rows.append(row(users, mode, real, model))
                    print(rows[-1][0], end="", flush=True)
                    write(rows, ways, warm_up, arguments.seconds, profile)
    if not all(fine for _, fine in rows):
        sys.exit("some figures are further off than that")


if __name__ == "__main__":
    main()
