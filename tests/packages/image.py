#!/usr/bin/env python3
"""Build the image of deploy/Containerfile from a clean copy of the last commit, and run it: `just image VARIANT`.

The images that it begins from are stood in for by the same Debian, made by debootstrap, with this machine's Rust: nothing is pulled. So `cuda`,
whose images are NVIDIA's, cannot be tried. Wants root, buildah and debootstrap.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
MODEL = "SmolLM2-135M-Instruct.Q8_0.gguf"
DEBIAN = "docker.io/library/debian:trixie-slim"
RUST = "docker.io/library/rust:1-trixie"
# What Docker's own images of Rust have beside it.
COMPILERS = ("build-essential", "ca-certificates", "git", "pkg-config")
os.environ["BUILDAH_ISOLATION"] = "chroot"


def run(*command: str | Path, **options) -> str:
    print("$", *command, file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def exists(image: str) -> bool:
    return subprocess.run(["buildah", "inspect", "--type", "image", image], capture_output=True).returncode == 0


@contextmanager
def container(image: str) -> Iterator[str]:
    name = run("buildah", "from", "--pull-never", image).strip()
    try:
        yield name
    finally:
        run("buildah", "rm", name)


def make_debian(folder: Path) -> None:
    # Its mounts are gone with it: a run that is stopped must not clean up what is only mounted there.
    run("unshare", "--mount", "debootstrap", "--variant=minbase", "trixie", folder)
    with container("scratch") as name:
        run("buildah", "add", "--quiet", name, folder, "/")
        run("buildah", "commit", "--quiet", name, DEBIAN)


def make_rust() -> None:
    toolchain = Path(run("rustc", "--print", "sysroot").strip())
    with container(DEBIAN) as name:
        run("buildah", "run", name, "apt-get", "update")
        run("buildah", "run", name, "apt-get", "install", "-y", "--no-install-recommends", *COMPILERS)
        # A machine behind a proxy trusts more than Debian does.
        run("buildah", "add", "--quiet", name, "/usr/local/share/ca-certificates", "/usr/local/share/ca-certificates")
        run("buildah", "run", name, "update-ca-certificates")
        run("buildah", "add", "--quiet", name, toolchain, "/usr/local/rust")
        run("buildah", "config", "--env", "CARGO_HOME=/usr/local/cargo", "--env", "PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin", name)
        run("buildah", "commit", "--quiet", name, RUST)


def build(variant: str, folder: Path) -> None:
    copy = folder / "copy"
    copy.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    subprocess.run(["tar", "-x"], input=archive, check=True, cwd=copy)
    flags = ("--pull-never", "--build-arg", f"VARIANT={variant}", "-f", "deploy/Containerfile")
    with (folder / "log").open("w") as log:
        built = subprocess.run(["buildah", "bud", *flags, "-t", f"forerun:{variant}", "."], cwd=copy, stdout=log, stderr=log)
    if built.returncode:
        sys.exit(f"{(folder / 'log').read_text()[-4000:]}\nbuildah bud: exit status {built.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=("cpu", "vulkan"))
    variant = parser.parse_args().variant
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        if not exists(DEBIAN):
            make_debian(folder / "debian")
        if not exists(RUST):
            make_rust()
        build(variant, folder)
    print(f"built in {(time.monotonic() - started) / 60:.0f} minutes", file=sys.stderr)
    with container(f"forerun:{variant}") as name:
        inside = ("buildah", "run", "-v", f"{MODELS}:/models:ro", name, "--")
        assert run(*inside, "id", "-u").strip() == "10001"
        # It may find problems, such as too little memory.
        doctor = subprocess.run([*inside, "forerun", "doctor", "--json"], stdout=subprocess.PIPE, text=True).stdout
        gpu = json.loads(doctor)["gpu"]
        assert gpu == ([] if variant == "cpu" else [variant]), doctor
        text = run(*inside, "forerun", "generate", "-m", f"/models/{MODEL}", "-p", "The capital of France is", "-n", "8", "--temp", "0", "-q")
        assert "Paris" in text, text
        config = json.loads(run("buildah", "inspect", "--type", "image", f"forerun:{variant}"))["OCIv1"]["config"]
        assert config["Entrypoint"][:2] == ["forerun", "serve"] and "8080/tcp" in config["ExposedPorts"], config
    print(f"forerun:{variant} runs, and says {text.strip()!r}")


if __name__ == "__main__":
    main()
