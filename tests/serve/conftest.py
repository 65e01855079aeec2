"""Servers for the tests, and what all tests share.

FORERUN_BIN is the binary, FORERUN_MODELS the folder of `just models`; FORERUN_FULL=1 asks for the long run.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

BINARY = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/release/forerun")).expanduser()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
FULL = os.environ.get("FORERUN_FULL") == "1"

TARGET = "SmolLM2-135M-Instruct.Q8_0.gguf"
GOOD = "SmolLM2-135M-Instruct.Q4_0.gguf"
USELESS = "SmolLM2-pruned-8+0.gguf"
HEAD = "SmolLM2-135M-Instruct.eagle3.gguf"

USED = (TARGET, GOOD, USELESS, HEAD)

# Tiny, with random weights and tokens for filling gaps; made by `just models`.
CODER = "zoo/llama-infill.gguf"

# Drafts of a fixed length: without one the controller may find that none pay, and nothing is tested.
DRAFTED = {"enabled": True, "length": 3}
PLAIN = {"enabled": False}

SEA = [{"role": "user", "content": "Tell me about the sea."}]

# Clients from npm.
JAVASCRIPT = ("openai@6.49.0", "@anthropic-ai/sdk@1.9.0", "ai@6.0.319", "@ai-sdk/openai-compatible@2.0.87")

# The files that `just models` brings; a test may use no other, even if an old cache holds it.
BROUGHT = (Path(__file__).parents[2] / "models" / "tests.txt").read_text().split("\n")

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def wait_until(true: Callable[[], Any], seconds: float, what: str) -> Any:
    """Asks again until it is so; fails the test where that takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.02)
    pytest.fail(f"{what}: not within {seconds} s")


class Server:
    """A running `forerun serve` on a port of its own, on this machine or in a network namespace of it."""

    def __init__(
        self,
        *flags: str,
        target: str = TARGET,
        drafter: str | None = GOOD,
        namespace: str | None = None,
        ready: bool = True,
    ) -> None:
        inside = ["ip", "netns", "exec", namespace] if namespace else []
        self.command = [*inside, str(BINARY), "serve", "-m", str(MODELS / target)]
        if "--port" not in flags:
            self.command += ["--port", "0"]
        if drafter:
            self.command += ["-md", str(MODELS / drafter)]
        defaults = {"-t": "1", "-c": "1024", "-np": "4"}
        for flag, value in defaults.items():
            if flag not in flags:
                self.command += [flag, value]
        self.command += flags
        self.load_s = 0.0
        self.start(ready)

    def start(self, ready: bool = True) -> None:
        """Starts it and waits until it listens, and, where it is to be ready, takes requests."""
        started = time.monotonic()
        own = ("LLAMA_", "FORERUN_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        environment["FORERUN_CONFIG"] = ""
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            self.command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()
        self.address = wait_until(self._listening, 60, "a line in the log that says the address")
        self.url = f"http://{self.address}"
        self.http = httpx.Client(base_url=self.url, timeout=120)
        if ready:
            wait_until(self.is_healthy, 60, "/health")
        self.load_s = time.monotonic() - started

    def _read(self, log: Any) -> None:
        for line in log:
            self.lines.append(_ESCAPES.sub("", line).rstrip())

    def _listening(self) -> str | None:
        if self.process.poll() is not None:
            self._reader.join(5)
            pytest.fail("the server did not start: " + "\n".join([*self.command, *self.lines]))
        said = r'listening address=(\S+)|"message":"listening","address":"([^"]+)"'
        found = (re.search(said, line) for line in list(self.lines))
        return next((match[1] or match[2] for match in found if match), None)

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def is_healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 60) -> int:
        """Waits until it has ended, and gives its exit code."""
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def stop(self) -> None:
        """Ends it, whatever it does; what a test left running is not waited for."""
        self.http.close()
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
            try:
                self.wait(1)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """The answer to a request that must be honoured."""
        try:
            response = self.http.post(path, json=body)
        except httpx.TransportError as error:
            code, log = self.process.poll(), "\n".join(self.lines[-20:])
            raise AssertionError(f"{error!r}; exit code {code}; asked {body}; log:\n{log}") from None
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, **body: Any) -> dict[str, Any]:
        return self.post("/v1/chat/completions", **({"messages": SEA} | body))

    def complete(self, **body: Any) -> dict[str, Any]:
        return self.post("/v1/completions", **body)

    def metrics(self) -> dict[str, float]:
        """Values by name and labels; the model's name is left out."""
        values = {}
        for line in self.http.get("/metrics").text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'model_name="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
                values[name] = float(value)
        return values

    def running(self) -> float:
        return self.metrics()["vllm:num_requests_running"]

    def waiting(self) -> float:
        return self.metrics()["vllm:num_requests_waiting"]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def pytest_sessionstart() -> None:
    if unlisted := set(USED) - set(BROUGHT):
        pytest.exit(f"not listed in models/tests.txt: {', '.join(sorted(unlisted))}", returncode=1)
    missing = [str(path) for path in (BINARY, *(MODELS / name for name in (*USED, CODER))) if not path.exists()]
    if missing:
        pytest.exit(f"missing {', '.join(missing)}: build with `cargo build --release -p forerun`, bring weights with `just models`")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The target with a good drafter, and flags as they come: texts are then the same to the last bit each time."""
    with Server() as running:
        yield running


@pytest.fixture(scope="session")
def thinking() -> Iterator[Server]:
    """A server whose template knows functions and thoughts."""
    template = Path(__file__).with_name("thinking.jinja")
    with Server("--chat-template-file", str(template), "-c", "2048", drafter=None) as running:
        yield running


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JavaScript clients, of the versions that were tested; later ones need a newer node than Debian's."""
    folder = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *JAVASCRIPT]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers with flags of their own, and stops those that run at the end of the module."""
    servers: list[Server] = []

    def new(*flags: str, **options: Any) -> Server:
        servers.append(Server(*flags, **options))
        return servers[-1]

    yield new
    for running in servers:
        running.stop()
