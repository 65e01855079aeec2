"""Servers under test: started, watched and stopped. No load is made here."""

import contextlib
import hashlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
FORERUN = os.environ.get("FORERUN_BIN", str(REPOSITORY / "target/release/forerun"))
LLAMA_SERVER = os.environ.get("LLAMA_SERVER", "llama-server")
# Loading a gigabyte from a cold disk takes a while.
START_S_MAX = 180.0


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that serves HTTP on a port of its own, with its log in a file."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.port = free_port()
        self.command = [*command, "--port", str(self.port)]
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Waits until it takes requests."""
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                    if answer.status == 200:
                        return
            time.sleep(0.2)
        self.stop()
        tail = self.log.read_text(errors="replace")[-2000:]
        raise SystemExit(f"{self.name} did not start; {self.log} ends with:\n{tail}")

    def cpu_s(self) -> float:
        """Processor time it has used so far, of all its threads."""
        # The name in the second field may hold spaces; what follows its bracket does not.
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_kib(self) -> dict[str, int]:
        """Resident memory, by kind: `VmRSS` is the whole, `RssAnon` without the model's file."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        wanted = ("VmRSS", "RssAnon", "RssFile")
        pairs = (line.split(":", 1) for line in lines if line.startswith(wanted))
        return {name: int(value.split()[0]) for name, value in pairs}

    def files(self) -> int:
        """How many files and sockets it holds open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, seconds: float = 40.0) -> tuple[int | None, float]:
        """Has it end in an orderly way; gives its exit code, if it did, and how long it took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
            self.process.wait()
        return code, time.monotonic() - started


@contextlib.contextmanager
def serving(servers: list[Server]) -> Iterator[None]:
    """Waits for all of them, and stops them at the end whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.stop()


def forerun(*flags: str) -> list[str]:
    """A command of `forerun serve`."""
    return [FORERUN, "serve", *flags]


def version(program: str) -> str:
    """What a program says of its version, in a line."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in (said.stdout + said.stderr).splitlines() if line.strip()]
    return lines[0].strip() if lines else "unknown"


def digest(path: Path) -> str:
    """The first digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def commit() -> str:
    """The commit the repository is at, with a mark where it has changes."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def machine() -> dict[str, str]:
    """Where this runs."""
    cpu = Path("/proc/cpuinfo").read_text()
    models = [line.split(":", 1)[1].strip() for line in cpu.splitlines() if "model name" in line]
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return {
        "processor": models[0] if models else platform.processor(),
        "threads": str(os.cpu_count()),
        "memory": f"{int(memory) / 2**20:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
