"""A hub, a cache and a program for each test.

FORERUN_PULL is the example `pull` of crates/hub. FORERUN_BIN is the `forerun` binary, and FORERUN_MODELS the folder of
`just models`: tests of the whole program are skipped where they are not set.
"""

import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, Repo

NAME = "acme/tiny-GGUF"
FILE = "tiny-Q4_K_M.gguf"
CONTENT = random.Random(1).randbytes(3_000_017)
OTHER = random.Random(2).randbytes(70_001)


def wait_until(true: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """Asks again until it is so; fails the test where that takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.01)
    pytest.fail(f"{what}: not within {seconds} s")


class Program:
    """Runs the client with an environment of its own."""

    def __init__(self, hub: FakeHub, home: Path, command: list[str]) -> None:
        self.hub, self.home, self.command = hub, home, command
        self.cache = home / ".cache/huggingface/hub"
        self.environment = {"HOME": str(home), "HF_ENDPOINT": hub.endpoint, "PATH": os.environ["PATH"]}

    def start(self, *args: str, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.command, *args],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, code: int = 0, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess:
        process = self.start(*args, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"{args}: not within {timeout} s\n{process.communicate()[1]}")
        assert process.returncode == code, f"{args}: {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def fetch(self, *args: str, **environment: str) -> Path:
        """Brings a model; returns where it is."""
        return Path(self.run(*args, **environment).stdout.strip())

    def fails(self, *args: str, **environment: str) -> str:
        """What the program says where it fails."""
        return self.run(*args, code=1, **environment).stderr

    def leftovers(self) -> list[Path]:
        """Files in the cache that are no whole ones."""
        return [path for path in self.cache.rglob("*") if path.suffix in (".incomplete", ".tmp")]

    def blobs(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("models--*/blobs/*"))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()
    fake.repos[NAME] = Repo({FILE: CONTENT, "tiny-Q8_0.gguf": OTHER, "README.md": b"hello\n"})
    yield fake
    fake.close()


@pytest.fixture
def pull(hub: FakeHub, tmp_path: Path) -> Program:
    return Program(hub, tmp_path, [os.environ["FORERUN_PULL"]])
