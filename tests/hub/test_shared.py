"""The cache is shared: with Python's hub client, and with the stores of other programs, which are only read."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from conftest import CONTENT, FILE, NAME, OTHER, Program, wait_until
from fake_hub import Faults, FakeHub, sha256


def python(pull: Program, code: str, **environment: str) -> str:
    """Runs a line with huggingface_hub in a process of its own, with the same environment."""
    ran = subprocess.run(
        [sys.executable, "-c", f"from huggingface_hub import *\n{code}"],
        env={**pull.environment, "HF_HUB_DISABLE_XET": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


DOWNLOAD = f"print(hf_hub_download({NAME!r}, {FILE!r}))"


def test_python_finds_what_we_brought_without_a_network(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    asked = len(hub.log)
    assert python(pull, DOWNLOAD, HF_HUB_OFFLINE="1") == str(path)
    assert len(hub.log) == asked


def test_python_does_not_bring_again_what_we_brought(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    assert python(pull, DOWNLOAD) == str(path)
    assert len(hub.asked("storage")) == 1


def test_python_lists_what_we_brought(hub: FakeHub, pull: Program) -> None:
    pull.fetch(NAME)
    code = "cache = scan_cache_dir()\nprint(cache.warnings, [(r.repo_id, r.size_on_disk, r.refs.keys()) for r in cache.repos])"
    assert python(pull, code) == f"[] [({NAME!r}, {len(CONTENT)}, dict_keys(['main']))]"


def test_we_find_what_python_brought(hub: FakeHub, pull: Program) -> None:
    path = python(pull, DOWNLOAD)
    asked = len(hub.asked("storage"))
    assert str(pull.fetch(NAME)) == path and str(pull.fetch(NAME, HF_HUB_OFFLINE="1")) == path
    assert len(hub.asked("storage")) == asked


def test_python_and_we_wait_for_each_other(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(hold=threading.Event())
    ours = pull.start(NAME)
    assert hub.faults.held.wait(30)
    theirs = []
    thread = threading.Thread(target=lambda: theirs.append(python(pull, DOWNLOAD)))
    thread.start()
    wait_until(lambda: hub.asked("hub", "HEAD"), "Python asks")
    hub.faults.hold.set()
    out, err = ours.communicate(timeout=30)
    thread.join(30)
    assert theirs == [out.strip()], err
    assert len(hub.asked("storage")) == 1 and Path(out.strip()).read_bytes() == CONTENT


def test_we_wait_for_python(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(hold=threading.Event())
    theirs = []
    thread = threading.Thread(target=lambda: theirs.append(python(pull, DOWNLOAD)))
    thread.start()
    assert hub.faults.held.wait(30)
    ours = pull.start(NAME)
    assert "Waiting" in ours.stderr.readline()
    hub.faults.hold.set()
    out, err = ours.communicate(timeout=30)
    thread.join(30)
    assert theirs == [out.strip()], err
    assert len(hub.asked("storage")) == 1


def test_models_of_ollama_and_lm_studio_are_found_and_left_alone(hub: FakeHub, pull: Program) -> None:
    digest = sha256(OTHER)
    ollama, studio = pull.home / ".ollama/models", pull.home / ".lmstudio/models/acme/tiny"
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    names = {"registry.ollama.ai/library/tiny/1b": layers, "hf.co/acme/tiny/Q8_0": layers}
    # Not to be followed: a digest that is a path, and a model whose content is gone.
    names["registry.ollama.ai/library/evil/x"] = [{**layers[1], "digest": "sha256:x/../../../../secret.gguf"}]
    (ollama / "blobs/sha256-x").mkdir(parents=True)
    (pull.home / "secret.gguf").write_bytes(b"secret")
    names["registry.ollama.ai/library/gone/x"] = [{**layers[1], "digest": "sha256:" + "2" * 64}]
    for name, listed in names.items():
        manifest = ollama / "manifests" / name
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"layers": listed}))
    (ollama / "manifests/registry.ollama.ai/library/tiny/broken").write_text("{")
    (ollama / "blobs" / f"sha256-{digest}").write_bytes(OTHER)
    studio.mkdir(parents=True)
    for name in ("tiny-Q8_0.gguf", "mmproj-tiny.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"):
        (studio / name).write_bytes(OTHER)
    path = pull.fetch(NAME)
    before = sorted((entry, entry.lstat().st_mtime_ns) for entry in pull.home.rglob("*"))
    blob = ollama / "blobs" / f"sha256-{digest}"
    assert pull.run("--models").stdout.splitlines() == [
        f"Hub {NAME}:Q4_K_M {len(CONTENT)} {path}",
        f"Ollama hf.co/acme/tiny:Q8_0 {len(OTHER)} {blob}",
        f"Ollama tiny:1b {len(OTHER)} {blob}",
        f"LmStudio acme/tiny/big-00001-of-00002.gguf {2 * len(OTHER)} {studio}/big-00001-of-00002.gguf",
        f"LmStudio acme/tiny/tiny-Q8_0.gguf {len(OTHER)} {studio}/tiny-Q8_0.gguf",
    ]
    assert sorted((entry, entry.lstat().st_mtime_ns) for entry in pull.home.rglob("*")) == before
