"""What `dist build` made of the program as one file, installed as users would, from a server on this machine: `just one-file`."""

import functools
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import tarfile
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
MADE = ROOT / "target/distrib"
METADATA = tomllib.loads((ROOT / "dist-workspace.toml").read_text())
GREEDY = ["generate", "-m", MODELS / "zoo/llama.gguf", "-p", "Once upon a time", "-n", "8", "--temp", "0", "-t", "1", "-q"]
(ARCHIVE,) = MADE.glob("forerun-*.tar.gz")


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What a release's page has, below the folder that is served."""
    path = METADATA["package"]["repository"].removeprefix("https://github.com/")
    folder = tmp_path / "host" / path / "releases/download" / f"v{METADATA['package']['version']}"
    folder.mkdir(parents=True)
    for file in MADE.glob("forerun-*"):
        if file.is_file():
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def host(tmp_path: Path, files: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path / "host")) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def install(host: str, home: Path) -> subprocess.CompletedProcess[str]:
    """By the script, in a home of its own."""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "FORERUN_INSTALLER_GITHUB_BASE_URL": host}
    return run("sh", MADE / "forerun-installer.sh", env=environment)


def test_the_installer_puts_a_program_that_runs_where_others_are(host: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    done = install(host, home)
    assert done.returncode == 0, done.stderr
    said = run(home / ".local/bin/forerun", *GREEDY, cwd=home)
    assert said.returncode == 0 and said.stdout, said.stderr


def test_the_installer_refuses_an_archive_with_another_checksum(host: str, files: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    archive = files / ARCHIVE.name
    archive.write_bytes(archive.read_bytes() + b"\0")
    done = install(host, home)
    assert done.returncode and "checksum" in done.stderr, done
    assert not (home / ".local/bin/forerun").exists()


def test_cargo_binstall_finds_the_archive_by_the_manifest(host: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for manifest in [ROOT / "Cargo.toml", *ROOT.glob("crates/*/Cargo.toml")]:
        there = copy / manifest.relative_to(ROOT)
        (there.parent / "src").mkdir(parents=True)
        (there.parent / "src/main.rs").touch()
        there.write_text(manifest.read_text().replace("https://github.com", host))
    root = tmp_path / "cargo"
    flags = ["--manifest-path", copy / "crates/cli", "--root", root, "--no-confirm", "--allow-insecure-http", "--disable-strategies", "compile,quick-install"]
    done = run("cargo-binstall", "binstall", "forerun", *flags)
    assert done.returncode == 0, done.stderr
    assert run(root / "bin/forerun", "--version").stdout == f"forerun {METADATA['package']['version']}\n"


def test_the_checksum_beside_the_archive_is_its_own() -> None:
    stated = (MADE / f"{ARCHIVE.name}.sha256").read_text().split()[0]
    assert stated == hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()


def test_the_archive_has_licences_manual_pages_and_completions() -> None:
    with tarfile.open(ARCHIVE) as archive:
        names = {Path(*Path(name).parts[1:]).as_posix() for name in archive.getnames()}
    shared = {"share/man/man1/forerun.1", "share/bash-completion/completions/forerun", "share/doc/forerun/THIRD-PARTY.txt"}
    assert {"forerun", "LICENSE-MIT", "LICENSE-APACHE", *shared} <= names, names


def test_an_older_processor_is_refused_by_name(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (program,) = tmp_path.glob("*/forerun")
    done = run("qemu-x86_64", "-cpu", "Nehalem", program, "--version")
    assert done.returncode and re.search("CPU ISA level is lower than required", done.stderr), done
    assert run("qemu-x86_64", "-cpu", "Haswell", program, "--version").returncode == 0
