"""Everything that can go wrong with a download, and what is to be true afterwards."""

import fcntl
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from conftest import CONTENT, FILE, NAME, OTHER, Program, wait_until
from fake_hub import Faults, FakeHub, Repo, sha256

BLOB = sha256(CONTENT)


def is_whole(pull: Program, path: Path) -> None:
    """The file has its content, by a link to a blob of its name, and nothing is left behind."""
    assert path.read_bytes() == CONTENT
    assert path.is_symlink() and path.resolve().name == BLOB
    assert not os.readlink(path).startswith("/"), "the cache can be moved"
    assert pull.leftovers() == []


def test_a_file_arrives_and_is_not_asked_for_again(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    is_whole(pull, path)
    assert path == pull.cache / "models--acme--tiny-GGUF/snapshots" / ("c" * 40) / FILE
    assert (pull.cache / "models--acme--tiny-GGUF/refs/main").read_text() == "c" * 40
    assert len(hub.asked("storage")) == 1
    again = pull.run(NAME)
    assert again.stdout.strip() == str(path) and "0 of 3000017 bytes" in again.stderr
    assert len(hub.asked("storage")) == 1


@pytest.mark.parametrize("after", [0, 1, 65_535, 65_536, 1_000_000, len(CONTENT) - 1])
def test_a_cut_is_continued_by_the_same_run(hub: FakeHub, pull: Program, after: int) -> None:
    hub.faults = Faults(cut_after=after)
    is_whole(pull, pull.fetch(NAME))
    first, second = (headers.get("Range") for _, headers in hub.asked("storage"))
    assert first is None and second == (f"bytes={after}-" if after else None)


def test_a_line_that_always_breaks_again_ends_with_the_file(hub: FakeHub, pull: Program) -> None:
    # More than a mebibyte each time: the attempts do not add up.
    hub.repos[NAME].files[FILE] = content = CONTENT * 4
    hub.faults = Faults(cut_after=1_100_000, cuts=1000)
    assert pull.fetch(NAME).read_bytes() == content
    assert len(hub.asked("storage")) == 11


def test_a_line_that_brings_next_to_nothing_is_given_up_and_continued_later(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(cut_after=1000, cuts=1000)
    said = pull.fails(NAME)
    assert "5000 of 3000017 bytes arrived" in said and "again to continue" in said
    assert [path.stat().st_size for path in pull.leftovers()] == [5000]
    hub.faults, asked = Faults(), len(hub.asked("storage"))
    is_whole(pull, pull.fetch(NAME))
    assert [headers["Range"] for _, headers in hub.asked("storage")[asked:]] == ["bytes=5000-"]


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_download_is_continued_by_the_next(hub: FakeHub, pull: Program, kill: int) -> None:
    hub.faults = Faults(hold=threading.Event())
    process = pull.start(NAME)
    assert hub.faults.held.wait(30)
    wait_until(lambda: [path for path in pull.leftovers() if path.stat().st_size > 1_000_000], "half a file")
    process.send_signal(kill)
    process.communicate()
    assert pull.blobs() == [f"{BLOB}.incomplete"], "nothing has the name of a whole file"
    arrived = pull.leftovers()[0].stat().st_size
    assert not list(pull.cache.glob("models--*/snapshots/*/*")) and not list(pull.cache.glob("models--*/refs/*"))
    hub.faults.hold.set()
    hub.faults = Faults()
    is_whole(pull, pull.fetch(NAME))
    assert hub.asked("storage")[-1][1]["Range"] == f"bytes={arrived}-"


@pytest.mark.parametrize("length", [0, 1, 2_999_999, len(CONTENT), len(CONTENT) + 5])
def test_whatever_an_earlier_run_left_ends_well(hub: FakeHub, pull: Program, length: int) -> None:
    blobs = pull.cache / "models--acme--tiny-GGUF/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{BLOB}.incomplete").write_bytes((CONTENT + b"later")[:length])
    is_whole(pull, pull.fetch(NAME))
    assert len(hub.asked("storage")) == (0 if length == len(CONTENT) else 1)


def test_what_an_earlier_run_left_wrong_is_brought_again(hub: FakeHub, pull: Program) -> None:
    blobs = pull.cache / "models--acme--tiny-GGUF/blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{BLOB}.incomplete").write_bytes(b"x" * 100_000)
    is_whole(pull, pull.fetch(NAME))
    assert [headers.get("Range") for _, headers in hub.asked("storage")] == ["bytes=100000-", None]


def test_a_connection_that_stalls_is_given_up_and_continued(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(stall_after=700_000)
    ran = pull.run(NAME, timeout=20, HF_HUB_DOWNLOAD_TIMEOUT="0.5")
    is_whole(pull, Path(ran.stdout.strip()))
    assert "nothing more came" in ran.stderr
    assert hub.asked("storage")[-1][1]["Range"] == "bytes=700000-"


def test_a_connection_that_always_stalls_is_an_error(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(stall_after=10, stalls=1000)
    said = pull.run(NAME, code=1, timeout=30, HF_HUB_DOWNLOAD_TIMEOUT="0.3").stderr
    assert "50 of 3000017 bytes arrived, then nothing more came" in said


@pytest.mark.parametrize("byte", [0, 1_500_000, len(CONTENT) - 1])
def test_a_wrong_byte_is_found_named_and_deleted(hub: FakeHub, pull: Program, byte: int) -> None:
    hub.faults = Faults(flip=byte)
    said = pull.fails(NAME)
    assert FILE in said and "damaged" in said and BLOB in said and "SHA-256" in said
    assert pull.blobs() == [] and not list(pull.cache.glob("models--*/snapshots/*/*"))
    hub.faults = Faults()
    is_whole(pull, pull.fetch(NAME))


def test_a_wrong_byte_before_a_cut_is_found_too(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(flip=10, flips=1, cut_after=1_000_000)
    assert "damaged" in pull.fails(NAME)
    assert pull.blobs() == []


def test_a_small_file_is_checked_too(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME] = repo = Repo({"a.gguf": OTHER}, small={"a.gguf"})
    assert pull.fetch(NAME).read_bytes() == OTHER
    # A hub that lists one thing and sends another.
    repo.commit, listed = "d" * 40, repo.entries()
    repo.files = {"a.gguf": OTHER[:-1] + bytes([OTHER[-1] ^ 1])}
    repo.entries = lambda: listed
    (pull.cache / "models--acme--tiny-GGUF/blobs" / listed[0]["oid"]).unlink()
    assert "git SHA-1" in pull.fails(NAME)


def test_a_server_that_sends_no_parts_sends_the_whole(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(cut_after=500_000, ignore_range=True)
    is_whole(pull, pull.fetch(NAME))


def test_a_server_that_sends_another_part_is_not_believed(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(cut_after=500_000, wrong_range=True)
    is_whole(pull, pull.fetch(NAME))
    assert [headers.get("Range") for _, headers in hub.asked("storage")] == [None, "bytes=500000-", None]


def test_a_server_that_is_busy_is_asked_again(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(statuses=[(503, {}), (429, {"Retry-After": "0"}), (500, {})])
    is_whole(pull, pull.fetch(NAME))


def test_a_listing_that_breaks_off_is_asked_for_again(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(answer_cuts=1, answer_statuses=[(502, {})])
    is_whole(pull, pull.fetch(NAME))
    hub.faults = Faults(answer_cuts=100)
    shutil.rmtree(pull.cache)
    assert "cannot be reached" in pull.fails(NAME)


def test_a_listing_that_is_none_is_an_error(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME].entries = lambda: {"no": "list"}
    assert "something else than expected" in pull.fails(NAME)


def test_a_server_that_stays_broken_is_an_error(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(statuses=[(503, {})] * 100)
    assert "status 503" in pull.fails(NAME)
    assert 95 <= len(hub.faults.statuses) < 100


def test_a_refusal_of_the_storage_host_is_not_blamed_on_the_repository(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(statuses=[(403, {})] * 9)
    said = pull.fails(NAME)
    assert "status 403" in said and "localhost" in said and "gated" not in said


def test_a_complete_cache_need_not_be_writable(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    before = {entry: entry.lstat().st_mtime_ns for entry in pull.cache.rglob("*")}
    assert pull.fetch(NAME) == path
    assert {entry: entry.lstat().st_mtime_ns for entry in pull.cache.rglob("*")} == before, "nothing was written"


def test_two_downloaders_bring_a_file_once(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(hold=threading.Event())
    first = pull.start(NAME)
    assert hub.faults.held.wait(30)
    second = pull.start(NAME)
    wait_until(lambda: len([path for path, _ in hub.asked("hub") if "/tree/" in path]) == 2, "the second asks")
    said = second.stderr.readline()
    assert "Waiting" in said
    hub.faults.hold.set()
    for process in (first, second):
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        is_whole(pull, Path(out.strip()))
    assert len(hub.asked("storage")) == 1


def test_a_downloader_goes_on_where_another_died(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(hold=threading.Event())
    first = pull.start(NAME)
    assert hub.faults.held.wait(30)
    second = pull.start(NAME)
    assert "Waiting" in second.stderr.readline()
    first.kill()
    first.communicate()
    hub.faults.hold.set()
    out, err = second.communicate(timeout=30)
    assert second.returncode == 0, err
    is_whole(pull, Path(out.strip()))
    assert "Range" in hub.asked("storage")[-1][1]


def test_many_downloaders_on_a_line_that_breaks(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(cut_after=1_100_000, cuts=3)
    processes = [pull.start(NAME) for _ in range(6)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        is_whole(pull, Path(out.strip()))


def test_a_lock_whose_file_was_deleted_locks_nothing(hub: FakeHub, pull: Program) -> None:
    # Python's client deletes a lock when it is done: who waited for it holds a file without a name.
    lock = pull.cache / ".locks/models--acme--tiny-GGUF" / f"{BLOB}.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as old, (lock.parent / "new").open("w") as new:
        fcntl.flock(old, fcntl.LOCK_EX)
        fcntl.flock(new, fcntl.LOCK_EX)
        process = pull.start(NAME)
        assert "Waiting" in process.stderr.readline()
        (lock.parent / "new").rename(lock)
        fcntl.flock(old, fcntl.LOCK_UN)
        # Long enough for it to look again several times.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert hub.asked("storage") == []
    assert process.wait(30) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_too_small_is_seen_before_the_download(hub: FakeHub, pull: Program, small_disk: Path) -> None:
    said = pull.fails(NAME, HF_HUB_CACHE=str(small_disk))
    assert FILE in said and "free" in said and str(small_disk) in said and "HF_HUB_CACHE" in said
    assert hub.asked("storage") == []


def test_a_disk_that_fills_up_keeps_what_arrived(hub: FakeHub, pull: Program, small_disk: Path) -> None:
    hub.repos[NAME].files[FILE] = content = CONTENT[:1_500_000]
    hub.faults = Faults(hold=threading.Event())
    process = pull.start(NAME, HF_HUB_CACHE=str(small_disk))
    assert hub.faults.held.wait(30)
    other = small_disk / "other"
    with other.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            pass
    hub.faults.hold.set()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "make room" in err and "kept" in err
    (partial,) = small_disk.rglob("*.incomplete")
    arrived = partial.stat().st_size
    assert 0 < arrived < len(content) and partial.read_bytes() == content[:arrived]
    other.unlink()
    hub.faults = Faults()
    assert pull.fetch(NAME, HF_HUB_CACHE=str(small_disk)).read_bytes() == content
    assert hub.asked("storage")[-1][1]["Range"] == f"bytes={arrived}-"


def test_a_cache_that_cannot_be_written_is_named(hub: FakeHub, pull: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said = pull.fails(NAME, HF_HUB_CACHE=str(tmp_path / "file"))
    assert str(tmp_path / "file") in said


def test_a_blob_of_another_size_is_replaced(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    path.resolve().write_bytes(b"short")
    is_whole(pull, pull.fetch(NAME))
