"""Streams through Dynamo's front end while workers die: every one is complete, and the same to the token.

Run by `just dynamo`, which also writes bench/dynamo/report.md. Needs the binaries of this workspace, real weights
(FORERUN_MODELS), and for the test with hosts root, Debian's iproute2 and etcd-server.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", HERE / "target")) / "debug"
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
TARGET, DRAFT = MODELS / "SmolLM2-135M-Instruct.Q8_0.gguf", MODELS / "SmolLM2-135M-Instruct.Q4_0.gguf"
REPORT = HERE.parents[1] / "bench/dynamo/report.md"
CHAT = "/v1/chat/completions"
STREAMS, LENGTH = 16, 120
CONVERSATIONS, TURNS = 8, 4
# A worker that is silent for so long is given up, and so is its lease. The first must be longer than a stream waits for
# its next token at the worst: here, until a worker with one thread has read the prompts of all that are moved to it.
PATIENCE = {"DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS": "10", "ETCD_LEASE_TTL": "5"}
# What a worker has to end its streams once it is told to stop; as in a release build.
PATIENCE |= {"DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": "30"}
PLANES = {"DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
HOSTS = [("dynamo-a", "10.214.1.2", "10.214.1.1"), ("dynamo-b", "10.214.2.2", "10.214.2.1")]


def free_port() -> int:
    # Dynamo reads the port of its metrics as a number of 16 bits with a sign.
    for _ in range(1000):
        with socket.socket() as taken, contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", random.randrange(20000, 32000)))
            return int(taken.getsockname()[1])
    pytest.fail("no free port")


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.1)
    pytest.fail(f"{what}: not within {seconds} s")


class Cluster:
    """A front end and two workers."""

    def __init__(self, folder: Path, *front: str, hosts: list[tuple[str, str, str]] | None = None, **settings: str) -> None:
        self.folder, self.front, self.hosts = folder, front, hosts
        discovery = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "discovery")}
        self.settings = os.environ | PATIENCE | PLANES | discovery | settings
        self.card = folder / "card"
        subprocess.run(["python3", str(HERE / "card.py"), str(TARGET), str(self.card)], check=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.metrics_ports = [free_port(), free_port()]

    def __enter__(self) -> "Cluster":
        self.workers = [self.worker(number) for number in range(2)]
        self.start("frontend", [str(BUILT / "forerun-dynamo-frontend"), "--port", str(self.port), *self.front], {})
        try:
            wait_until(self.serves, 60, f"both workers are known, see {self.folder}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def start(self, name: str, command: list[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.settings | settings)
        self.processes.append(process)
        return process

    def worker(self, number: int) -> subprocess.Popen[bytes]:
        command = [str(BUILT / "forerun-dynamo-worker"), "-m", str(TARGET), "--spec-draft-model", str(DRAFT)]
        command += ["--spec-fixed", "--spec-draft-n-max", "3", "-t", "1", "-c", "512", "--parallel", "16"]
        command += ["--card", str(self.card), "--served-model-name", "smollm2"]
        settings = {"DYN_SYSTEM_PORT": str(self.metrics_ports[number])}
        if self.hosts:
            name, address, _ = self.hosts[number]
            command = ["ip", "netns", "exec", name, *command]
            settings |= {"DYN_TCP_RPC_HOST": address, "DYN_TCP_RESPONSE_STREAM_HOST": address}
        return self.start(f"worker-{number}", command, settings)

    def serves(self) -> bool:
        try:
            answer = httpx.get(self.url + "/health", timeout=5).json()
            if not httpx.get(self.url + "/v1/models", timeout=5).json()["data"]:
                return False
        except (httpx.TransportError, json.JSONDecodeError):
            return False
        return len([it for it in answer.get("instances", []) if it.get("endpoint") == "generate"]) == 2

    def metric(self, name: str, *numbers: int) -> float:
        """One of the workers' metrics, summed over its labels."""
        total = 0.0
        for number in numbers or range(2):
            host = self.hosts[number][1] if self.hosts else "127.0.0.1"
            text = httpx.get(f"http://{host}:{self.metrics_ports[number]}/metrics", timeout=5).text
            total += sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))
        return total

    def ask(self, text: str, **fields: Any) -> httpx.Response:
        body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 16} | fields
        return httpx.post(self.url + CHAT, json=body, timeout=120)


@dataclass
class Stream:
    """What a client got."""

    text: str = ""
    finish: str | None = None
    """Why it ended. Dynamo says [DONE] also where a stream failed; then there is none."""
    chunks: int = 0
    pause: float = 0.0
    """The longest time it waited for a chunk, after the first."""


def read(url: str, seed: int, stream: Stream) -> None:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"Tell me story number {seed} about the sea."}],
        "max_tokens": LENGTH,
        "temperature": 1,
        "seed": seed,
        "stream": True,
        "ignore_eos": True,
    }
    last = None
    with httpx.stream("POST", url + CHAT, json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            for choice in json.loads(line[6:]).get("choices", []):
                now = time.monotonic()
                stream.pause = max(stream.pause, now - (last or now))
                last = now
                stream.chunks += 1
                stream.text += choice["delta"].get("content") or ""
                stream.finish = choice.get("finish_reason") or stream.finish


def streams(cluster: Cluster, disturb: Callable[[], object] | None = None) -> list[Stream]:
    """All of them at once; once each has begun, something happens."""
    running = [Stream() for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        readers = [pool.submit(read, cluster.url, seed, stream) for seed, stream in enumerate(running)]
        if disturb:
            wait_until(lambda: min(it.chunks for it in running) >= 3, 60, "every stream has begun")
            disturb()
        for reader in readers:
            reader.result()
    return running


@dataclass
class Report:
    """What is written down at the end."""

    rows: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, event: str, got: list[Stream], expected: list[str]) -> None:
        whole = sum(it.finish == "length" for it in got)
        same = sum(it.text == text for it, text in zip(got, expected))
        pause = max(it.pause for it in got)
        self.rows.append(f"| {event} | {whole} of {STREAMS} | {same} of {STREAMS} | {pause:.1f} |\n")


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    report = Report()
    yield report
    if not os.environ.get("FORERUN_REPORT"):
        return
    REPORT.parent.mkdir(exist_ok=True)
    notes = "".join(f"* {note}\n" for note in report.notes)
    REPORT.write_text(
        f"""# Workers that die under Dynamo

Made by `just dynamo` on {time.strftime("%Y-%m-%d", time.gmtime())}: Dynamo 1.6.1's front end and two workers with a thread each on one machine of {os.cpu_count()} threads,
{TARGET.name} drafted for by {DRAFT.name} (three tokens always, the coupled rule). {STREAMS} streams of {LENGTH} tokens at once, a seed each,
temperature 1; once each has begun, the event. *Same*: the text is that of the undisturbed run, to the character. *Longest pause*: of any
stream between two chunks. A silent worker is given up after {PATIENCE["DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS"]} s. Dynamo's conformance kit passed in the same run.

| event | complete | same | longest pause (s) |
|---|--:|--:|--:|
{"".join(report.rows)}
{notes}""",
        encoding="utf-8",
    )


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers nobody disturbs."""
    with Cluster(tmp_path_factory.mktemp("healthy")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def expected(healthy: Cluster, report: Report) -> list[str]:
    """The texts as they are when nothing happens."""
    got = streams(healthy)
    assert all(it.finish == "length" for it in got)
    texts = [it.text for it in got]
    assert len(set(texts)) == STREAMS
    drafted, accepted = (healthy.metric(f"vllm:spec_decode_num_{kind}_tokens_total") for kind in ("draft", "accepted"))
    assert accepted > 0, "nothing was speculated"
    report.notes.append(f"Undisturbed, {accepted:.0f} of {drafted:.0f} drafted tokens were accepted.")
    report.add("none", got, texts)
    return texts


@pytest.fixture
def one_host(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Cluster]:
    etcd = shutil.which("etcd") or pytest.fail("etcd is not installed (Debian: etcd-server)")
    listen = "http://0.0.0.0:2479"
    command = [etcd, "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", listen]
    command += ["--advertise-client-urls", listen, "--listen-peer-urls", "http://127.0.0.1:2480"]
    discovery = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for index, (name, address, own) in enumerate(HOSTS):
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        for words in (
            f"netns add {name}",
            f"link add dy{index} type veth peer name wire netns {name}",
            f"address add {own}/30 dev dy{index}",
            f"link set dy{index} up",
            f"-n {name} address add {address}/30 dev wire",
            f"-n {name} link set wire up",
            f"-n {name} link set lo up",
            f"-n {name} route add default via {own}",
        ):
            subprocess.run(["ip", *words.split()], check=True)
    settings = {"DYN_DISCOVERY_BACKEND": "etcd", "ETCD_ENDPOINTS": f"http://{HOSTS[0][2]}:2479"}
    try:
        with Cluster(tmp_path, hosts=HOSTS, **settings) as cluster:
            yield cluster
    finally:
        discovery.kill()
        discovery.wait()
        for name, _, _ in HOSTS:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_a_killed_worker_leaves_every_stream_whole_and_the_same(one_host: Cluster, expected: list[str], report: Report) -> None:
    got = streams(one_host, lambda: one_host.workers[0].send_signal(signal.SIGKILL))
    report.add("a worker killed with -9", got, expected)
    assert [it.finish for it in got] == ["length"] * STREAMS
    assert [it.text for it in got] == expected


def test_a_lost_link_leaves_every_stream_whole_and_the_same(two_hosts: Cluster, expected: list[str], report: Report) -> None:
    got = streams(two_hosts, lambda: subprocess.run(["ip", "link", "set", "dy0", "down"], check=True))
    report.add("the link to a worker's host taken down (network namespaces, etcd)", got, expected)
    assert [it.finish for it in got] == ["length"] * STREAMS
    assert [it.text for it in got] == expected


def test_a_worker_that_is_told_to_stop_breaks_nothing(one_host: Cluster, expected: list[str], report: Report) -> None:
    got = streams(one_host, lambda: one_host.workers[1].send_signal(signal.SIGTERM))
    report.add("SIGTERM", got, expected)
    assert [it.text for it in got] == expected
    assert one_host.workers[1].wait(30) == 0


def test_streams_break_where_they_may_not_be_moved(tmp_path: Path, expected: list[str], report: Report) -> None:
    with Cluster(tmp_path, "--migration-limit", "0") as cluster:
        got = streams(cluster, lambda: cluster.workers[0].send_signal(signal.SIGKILL))
    report.add("a worker killed with -9, migration limit 0", got, expected)
    broken = [it.text for it in got if it.finish is None]
    # Those of the worker that lives are whole, and what there is of the others is right.
    assert 0 < len(broken) < STREAMS
    assert all(text.startswith(it.text) for it, text in zip(got, expected))


def hit_rate(cluster: Cluster, *workers: int) -> float:
    """Share of prompt tokens that were cached at these workers, of conversations that take turns."""

    def sums() -> tuple[float, float]:
        hits, queries = (cluster.metric(f"vllm:prefix_cache_{kind}_total", *workers) for kind in ("hits", "queries"))
        return hits, queries

    hits, queries = sums()
    salt = random.getrandbits(32)
    stories: list[list[dict[str, str]]] = [[] for _ in range(CONVERSATIONS)]
    for turn in range(TURNS):
        order = list(enumerate(stories))
        # Always in the same order, each would come back to its worker in turn too.
        random.Random(turn).shuffle(order)
        for number, story in order:
            facts = " ".join(f"Fact {turn}.{fact} of story {number} is {fact * turn}." for fact in range(4))
            story.append({"role": "user", "content": f"{salt} {number}: {facts}"})
            answer = cluster.ask("", messages=story, temperature=0)
            assert answer.status_code == 200, answer.text
            story.append(answer.json()["choices"][0]["message"])
    after = sums()
    return (after[0] - hits) / (after[1] - queries)


def test_conversations_go_where_they_are_cached(healthy: Cluster, tmp_path: Path, report: Report) -> None:
    by_events = hit_rate(healthy)
    with Cluster(tmp_path, "--round-robin") as cluster:
        in_turn = hit_rate(cluster)
        # The best possible: all at one worker.
        cluster.workers[1].terminate()
        cluster.workers[1].wait(30)
        best = hit_rate(cluster, 0)
    report.notes.append(
        f"{CONVERSATIONS} conversations of {TURNS} turns, prompt tokens that were cached: {by_events:.2f} routed by our KV events, "
        f"{in_turn:.2f} in turn, {best:.2f} at one worker alone."
    )
    assert by_events >= 0.85 * best
    assert by_events > 1.1 * in_turn


def test_what_cannot_be_honoured_is_refused_and_users_are_told(healthy: Cluster) -> None:
    for fields, told in (({"presence_penalty": 0.5}, "--no-migration"), ({"n": 2}, "leave out n")):
        answer = healthy.ask("Hello.", **fields)
        assert answer.status_code == 400 and told in answer.text, answer.text


def test_forms_and_logprobs_are_given(healthy: Cluster) -> None:
    schema = {"type": "object", "properties": {"sea": {"type": "boolean"}}, "required": ["sea"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "sea", "schema": schema}}
    answer = healthy.ask("Is there a sea?", response_format=form, max_tokens=40)
    assert answer.status_code == 200, answer.text
    assert isinstance(json.loads(answer.json()["choices"][0]["message"]["content"])["sea"], bool)
    answer = healthy.ask("Say hello.", temperature=0, logprobs=True, top_logprobs=2)
    said = answer.json()["choices"][0]["logprobs"]["content"]
    assert len(said) == 16
    for token in said:
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] >= token["top_logprobs"][1]["logprob"]


def test_a_client_that_leaves_ends_its_text(healthy: Cluster) -> None:
    length = 400
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Count."}], "max_tokens": length, "ignore_eos": True}
    before = healthy.metric("vllm:generation_tokens_total")
    with httpx.stream("POST", healthy.url + CHAT, json=body | {"stream": True}, timeout=60) as response:
        lines = (line for line in response.iter_lines() if "content" in line)
        next(lines)
        next(lines)
    wait_until(lambda: healthy.metric("vllm:num_requests_running") == 0, 10, "the text has ended")
    assert 0 < healthy.metric("vllm:generation_tokens_total") - before < 0.75 * length
