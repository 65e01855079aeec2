"""The README's first block, word for word, from a wheel that was just built and in an empty home."""

import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from fake_hub import FakeHub, Repo
from test_forerun import MODEL, MODELS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel: the module, and the binary of the other tests in the place of a release's."""
    if "FORERUN_BIN" not in os.environ:
        pytest.skip("FORERUN_BIN names no binary")
    folder = tmp_path_factory.mktemp("wheels")
    program = folder / "tree/bin/forerun"
    program.parent.mkdir(parents=True)
    subprocess.run(["strip", "-o", program, os.environ["FORERUN_BIN"]], check=True)
    command = [ROOT / "tools/package.sh", "wheel", folder / "tree", folder]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def first_block() -> list[str]:
    """The commands of the README's first block, without their comments."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = (line.split("#")[0].strip() for line in block.group(1).splitlines())
    return [line for line in lines if line]


def test_the_readme_s_first_block_ends_with_an_answer(hub: FakeHub, wheels: Path, tmp_path: Path) -> None:
    if not (MODELS / MODEL).exists():
        pytest.skip("`just models` brings the weights")
    install, chat = first_block()
    (repository,) = re.findall(r"-hf (\S+)", chat)
    hub.repos[repository] = Repo({"model-Q4_K_M.gguf": (MODELS / MODEL).read_bytes()})
    tools = Path(shutil.which("uv") or pytest.fail("tests/hub/requirements.txt brings uv")).parent
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}/.local/bin:{tools}:/usr/bin:/bin",
        "UV_FIND_LINKS": str(wheels),
        "UV_PYTHON_DOWNLOADS": "never",
        "HF_ENDPOINT": hub.endpoint,
    }
    # What a machine needs to reach its package index is not the test's business.
    index = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_", "http", "HTTP", "no_proxy"))}
    started = time.monotonic()
    installed = subprocess.run(install, shell=True, capture_output=True, text=True, env=index | environment, timeout=180)
    assert installed.returncode == 0, installed.stderr
    print(f"{install}: {time.monotonic() - started:.1f} s")
    process = subprocess.Popen(
        shlex.split(chat, comments=True),
        executable=tmp_path / ".local/bin/forerun",
        env=index | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # A small model may go on and on: its first words are enough.
    watchdog = threading.Timer(150, process.kill)
    watchdog.start()
    process.stdin.write("Say hello in one word.\n")
    process.stdin.flush()
    first = process.stdout.read(1)
    print(f"{chat}: first token {time.monotonic() - started:.1f} s after the start")
    process.kill()
    said = process.communicate()[1]
    watchdog.cancel()
    assert first, said
    assert "downloading model-Q4_K_M.gguf" in said
