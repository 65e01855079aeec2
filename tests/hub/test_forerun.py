"""The program itself: flags, commands and what they say, and a first answer from a model by name."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest
from conftest import CONTENT, FILE, NAME, OTHER, Program
from fake_hub import Faults, FakeHub, Repo

TOKEN = "hf_" + "t" * 34
MODEL = "SmolLM2-135M-Instruct.Q4_0.gguf"
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()


@pytest.fixture
def forerun(hub: FakeHub, tmp_path: Path) -> Program:
    if "FORERUN_BIN" not in os.environ:
        pytest.skip("FORERUN_BIN names no binary")
    return Program(hub, tmp_path, [os.environ["FORERUN_BIN"]])


@pytest.fixture
def smol(hub: FakeHub) -> str:
    if not (MODELS / MODEL).exists():
        pytest.skip("`just models` brings the weights")
    hub.repos["acme/smol"] = Repo({"smol-Q4_0.gguf": (MODELS / MODEL).read_bytes()})
    return "acme/smol:Q4_0"


GREEDY = ("-p", "The three primary colours are", "-n", "8", "--temp", "0", "-t", "1", "-q")


def test_a_model_by_name_answers_as_the_file_does(hub: FakeHub, forerun: Program, smol: str) -> None:
    by_file = forerun.run("generate", "-m", str(MODELS / MODEL), *GREEDY).stdout
    assert len(by_file) > 10
    by_name = forerun.run("generate", "-hf", smol, *GREEDY)
    assert by_name.stdout == by_file and "downloading smol-Q4_0.gguf" in by_name.stderr
    again = forerun.run("generate", "-hf", smol, "-hfd", smol, "--offline", *GREEDY)
    assert again.stdout == by_file and "downloading" not in again.stderr
    assert len(hub.asked("storage")) == 1
    environment = {"LLAMA_ARG_HF_REPO": "acme/smol", "LLAMA_ARG_HF_FILE": "smol-Q4_0.gguf"}
    assert forerun.run("generate", *GREEDY, **environment).stdout == by_file


def test_pull_models_and_rm(hub: FakeHub, forerun: Program) -> None:
    pulled = forerun.run("pull", NAME)
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == CONTENT and "checked" in pulled.stderr
    assert "already" in forerun.run("pull", NAME).stderr
    forerun.run("pull", NAME, "-hff", "tiny-Q8_0.gguf")
    listed = forerun.run("models").stdout
    assert f"{NAME}:Q4_K_M  3 MiB" in listed and f"{NAME}:Q8_0" in listed and "-hf NAME" in listed
    models = json.loads(forerun.run("models", "--json").stdout)
    assert models[0] == {
        "store": "hub",
        "name": f"{NAME}:Q4_K_M",
        "location": str(path),
        "size": len(CONTENT),
        "is_head": False,
    }
    removed = forerun.run("rm", NAME)
    assert f"removed {FILE}" in removed.stdout and "free again" in removed.stderr
    assert "no models" in forerun.run("models").stderr
    assert "not in the cache" in forerun.fails("rm", NAME)


def test_the_token_flag_is_used_and_never_shown(hub: FakeHub, forerun: Program) -> None:
    hub.repos[NAME].gated = True
    said = forerun.fails("pull", NAME)
    assert "accept its terms" in said
    wrong = "hf_" + "w" * 34
    assert wrong not in forerun.fails("pull", NAME, "-hft", wrong)
    assert Path(forerun.run("pull", NAME, "-hft", TOKEN).stdout.strip()).read_bytes() == CONTENT
    assert "--hf-token" in forerun.run("generate", "--help").stdout
    assert TOKEN not in forerun.run("generate", "--help", HF_TOKEN=TOKEN).stdout


def test_what_is_wrong_is_said_before_a_download(hub: FakeHub, forerun: Program) -> None:
    for wrong in (["--temp", "-1"], ["-n", "0"]):
        forerun.run("generate", "-hf", NAME, "-p", "a", *wrong, code=2)
    forerun.run("serve", "-hf", NAME, "--temp", "-1", code=2)
    forerun.run("generate", "-hf", NAME, "-m", "x.gguf", "-p", "a", code=2)
    forerun.run("generate", "-m", "x.gguf", "-hff", "y.gguf", "-p", "a", code=2)
    forerun.run("generate", "-hf", "tiny", "-p", "a", code=2)
    assert hub.log == []


def test_a_name_in_the_place_of_a_file_is_explained(hub: FakeHub, forerun: Program) -> None:
    said = forerun.run("chat", NAME, "-p", "a", code=2).stderr
    assert f"use -hf {NAME}" in said


def test_the_command_line_goes_before_the_environment(hub: FakeHub, forerun: Program) -> None:
    said = forerun.run("generate", "-m", "absent.gguf", "-p", "a", code=1, LLAMA_ARG_HF_REPO=NAME).stderr
    assert "absent.gguf" in said and hub.log == []
    said = forerun.run("generate", "-hf", "acme/absent", "-p", "a", code=1, LLAMA_ARG_MODEL="x.gguf").stderr
    assert "acme/absent is not at" in said


def test_a_drafter_comes_from_a_repository_of_its_own(hub: FakeHub, forerun: Program) -> None:
    # None of these files is a model, so loading fails: what matters is what was brought before.
    hub.repos["acme/heads"] = Repo({"eagle3-x-Q8_0.gguf": OTHER, "x-Q8_0.gguf": OTHER + b"1"})
    run = ("generate", "-hf", NAME, "-p", "a")
    forerun.run(*run, "-hfd", "acme/heads", "-td", "1", code=1)
    forerun.run(*run, "-hfd", "acme/heads", "-md", "x-Q8_0.gguf", code=1)
    brought = [path.name for path in (forerun.cache / "models--acme--heads").glob("snapshots/*/*")]
    assert sorted(brought) == ["eagle3-x-Q8_0.gguf", "x-Q8_0.gguf"]
    hub.repos[NAME].files["mtp-tiny-Q8_0.gguf"] = OTHER
    hub.repos[NAME].commit = "e" * 40
    forerun.run(*run, "--spec-type", "draft-mtp", code=2)
    assert list(forerun.cache.glob("*/snapshots/*/mtp-tiny-Q8_0.gguf"))


def test_offline_is_a_flag_of_every_command_that_runs_a_model(hub: FakeHub, forerun: Program) -> None:
    for command in (["generate", "-p", "a"], ["chat", "-p", "a"], ["serve"], ["tune"], ["bench"]):
        said = forerun.run(*command, "-hf", NAME, "--offline", code=1).stderr
        assert "not in the cache" in said, command
    assert hub.log == []


def test_a_terminal_gets_a_bar_with_rate_and_time_left(hub: FakeHub, forerun: Program) -> None:
    hub.faults = Faults(drip=0.005)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*forerun.command, "pull", NAME],
        env={**forerun.environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:
        pass  # the terminal's other end is closed
    assert process.wait(30) == 0
    text = seen.decode(errors="replace")
    assert re.search(rf"{re.escape(FILE)} \[=*>? *\] [\d.]+ \w+ of [\d.]+ MiB, [\d.]+ \w+/s, \d+\w+ left", text), text
