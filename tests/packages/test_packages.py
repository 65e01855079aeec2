"""The packages of `tools/package.sh portable` and `linux`, tried where they were not built: `just packages`.

One program on processors of different ages, by emulation, and the deb in a clean root, served as its unit says.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parent.parent.parent
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
(TREE,) = (ROOT / "dist").glob("forerun-*-gnu")
PROGRAM = TREE / "bin/forerun"
GREEDY = ["generate", "-p", "Once upon a time", "-n", "16", "--temp", "0", "-t", "1", "-q"]

# What a processor brings, and what it may not use. The emulator knows nothing newer than AVX2.
PROCESSORS = {
    "qemu64": (set(), {"AVX", "AVX2", "AVX512", "SSSE3"}),
    "Nehalem": ({"SSE3"}, {"AVX", "AVX2", "AVX512"}),
    "SandyBridge": ({"AVX"}, {"AVX2", "AVX512"}),
    "Haswell": ({"AVX2", "FMA", "F16C"}, {"AVX512"}),
}


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def used(*emulator: str) -> set[str]:
    """The parts of the processor that the loaded library uses, as llama.cpp says."""
    # It fails where it finds a problem: that the emulated processor has less than the kernel says.
    done = subprocess.run([*emulator, PROGRAM, "doctor", "--json"], stdout=subprocess.PIPE, text=True)
    said = json.loads(done.stdout)["build"]["processor_features"]
    return set(re.findall(r"(\w+) = 1", said))


def test_this_processor_is_used_whole() -> None:
    assert {"AVX2", "FMA"} <= used()


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_right_library_is_loaded_and_runs(processor: str) -> None:
    has, lacks = PROCESSORS[processor]
    emulator = ["qemu-x86_64", "-cpu", processor]
    found = used(*emulator)
    assert has <= found and not lacks & found, found
    # An illegal instruction would end it.
    assert run(*emulator, PROGRAM, *GREEDY, "-m", MODELS / "zoo/llama.gguf", timeout=300)


def test_a_program_without_its_libraries_says_so(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(TREE, tree, symlinks=True)
    for library in (tree / "lib/forerun").glob("libggml-cpu-*"):
        library.unlink()
    # Left to itself, llama.cpp would look in the current folder then.
    command = ["strace", "-f", "-e", "trace=openat", "-o", tmp_path / "trace", tree / "bin/forerun"]
    for arguments in ([*GREEDY, "-m", MODELS / "zoo/llama.gguf"], ["doctor"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1
        assert f'"{tmp_path}"' not in (tmp_path / "trace").read_text()
        assert arguments[0] == "doctor" or "no library for this processor" in done.stderr, done


def test_a_library_in_the_current_folder_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "libggml-cpu-evil.so").write_bytes(b"not a library")
    traced = subprocess.run(["strace", "-f", "-e", "trace=openat", PROGRAM, "doctor"], cwd=tmp_path, capture_output=True, text=True)
    assert "libggml-cpu-" in traced.stderr and "evil" not in traced.stderr


@pytest.fixture(scope="module")
def clean_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian with nothing but the package."""
    root = tmp_path_factory.mktemp("root")
    run("unshare", "--mount", "debootstrap", "--variant=minbase", "--include=libstdc++6", "bookworm", root, timeout=600)
    (deb,) = (ROOT / "dist").glob("*.deb")
    shutil.copy(deb, root / "forerun.deb")
    # Where a program is, and so its libraries, it finds out by it.
    run("mount", "-t", "proc", "proc", root / "proc")
    yield root
    run("umount", root / "proc")
    shutil.rmtree(root, ignore_errors=True)


def test_the_deb_serves_by_its_unit_s_command(clean_root: Path) -> None:
    run("chroot", clean_root, "dpkg", "-i", "/forerun.deb")
    model = "SmolLM2-135M-Instruct.Q4_0.gguf"
    folder = clean_root / "var/lib/forerun"
    folder.mkdir(parents=True)
    shutil.copy(MODELS / model, folder / model)
    (clean_root / "etc/forerun/serve.toml").write_text(f'model = "/var/lib/forerun/{model}"\nport = 18080\n')
    unit = (clean_root / "usr/lib/systemd/system/forerun.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    server = subprocess.Popen(["chroot", clean_root, *shlex.split(command)], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen("http://127.0.0.1:18080/health", timeout=2) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, server.stderr.read()
                time.sleep(0.2)
        body = json.dumps({"prompt": "One, two,", "max_tokens": 4}).encode()
        request = urllib.request.Request("http://127.0.0.1:18080/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
    finally:
        server.terminate()
        assert server.wait(60) == 0
    run("chroot", clean_root, "forerun", "completions", "bash")
    assert (clean_root / "usr/share/man/man1/forerun.1").exists()
    run("chroot", clean_root, "dpkg", "--purge", "forerun")
    assert not (clean_root / "usr/lib/forerun").exists()


def test_the_bill_of_materials_is_valid_and_names_llama_cpp() -> None:
    (path,) = (ROOT / "dist").glob("*.cdx.json")
    text = path.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    bill = json.loads(text)
    names = {component["name"] for component in bill["components"]}
    assert {"llama.cpp", "llama-cpp-sys-2", "forerun-verify"} <= names
    (binding,) = (it for it in bill["dependencies"] if "#llama-cpp-sys-2@" in it["ref"])
    assert "llama.cpp" in binding["dependsOn"]
    assert str(ROOT) not in text


def test_the_rpm_has_the_same_files() -> None:
    (rpm,) = (ROOT / "dist").glob("*.rpm")
    listed = set(run("rpm", "-qlp", rpm).split())
    assert {"/usr/bin/forerun", "/usr/lib/systemd/system/forerun.service", "/usr/share/man/man1/forerun.1"} <= listed
    assert any(path.startswith("/usr/lib/forerun/libggml-cpu-") for path in listed)
