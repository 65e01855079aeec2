"""Which file a name means, who may have it, and what a listing may say."""

from pathlib import Path

import pytest
from conftest import CONTENT, FILE, NAME, OTHER, Program
from fake_hub import Faults, FakeHub, Repo, sha256

TOKEN = "hf_" + "t" * 34


def test_the_usual_quantisation_is_brought_and_another_by_name(hub: FakeHub, pull: Program) -> None:
    assert pull.fetch(NAME).name == FILE
    assert pull.fetch(f"{NAME}:q8_0").read_bytes() == OTHER
    assert pull.fetch(NAME, "tiny-Q8_0.gguf").read_bytes() == OTHER


def test_what_is_not_there_is_answered_with_what_is(hub: FakeHub, pull: Program) -> None:
    for said in (pull.fails(f"{NAME}:Q2_K"), pull.fails(NAME, "other.gguf")):
        assert FILE in said and "tiny-Q8_0.gguf" in said and "README" not in said
    hub.repos["acme/words"] = Repo({"README.md": b"hello\n"})
    assert "no GGUF files" in pull.fails("acme/words")


def test_all_parts_of_a_split_model_are_brought(hub: FakeHub, pull: Program) -> None:
    files = {f"Q8_0/big-Q8_0-{part:05}-of-00003.gguf": OTHER + bytes([part]) for part in (1, 2, 3)}
    hub.repos[NAME] = Repo({**files, "big-Q4_0.gguf": OTHER})
    first = pull.fetch(f"{NAME}:Q8_0")
    assert first.name == "big-Q8_0-00001-of-00003.gguf"
    for path, content in files.items():
        assert (first.parents[1] / path).read_bytes() == content
    assert pull.fetch(NAME, "Q8_0/big-Q8_0-00001-of-00003.gguf", HF_HUB_OFFLINE="1") == first
    (first.parent / "big-Q8_0-00002-of-00003.gguf").unlink()
    assert "not in the cache" in pull.fails(f"{NAME}:Q8_0", HF_HUB_OFFLINE="1")


def test_a_split_model_that_lacks_a_part_is_refused(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME] = Repo({f"big-{part:05}-of-00003.gguf": OTHER for part in (1, 3)})
    assert "has 2 of them" in pull.fails(NAME)
    assert hub.asked("storage") == []


def test_a_draft_head_is_preferred_where_a_drafter_is_wanted(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME].files["eagle3-tiny-Q8_0.gguf"] = b"head"
    assert pull.fetch(NAME, "--draft").read_bytes() == b"head"
    assert pull.fetch(NAME).name == FILE
    del hub.repos[NAME].files["eagle3-tiny-Q8_0.gguf"]
    assert pull.fetch(NAME, "--draft").name == FILE


def test_a_listing_of_several_pages_is_read_to_its_end(hub: FakeHub, pull: Program) -> None:
    hub.faults = Faults(page_len=1)
    assert pull.fetch(f"{NAME}:Q8_0").read_bytes() == OTHER
    pages = [headers for path, headers in hub.asked("hub") if "/tree/" in path]
    assert len(pages) == 4


def test_odd_but_honest_names_are_taken(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME] = Repo({"a b/tiny #1 100%? ä-Q4_K_M.gguf": OTHER})
    assert pull.fetch(NAME).read_bytes() == OTHER


@pytest.mark.parametrize(
    "path",
    ["../../../evil.gguf", "/tmp/evil.gguf", "a/../../../../evil.gguf", "a\\..\\evil.gguf", "C:evil.gguf", "a\n.gguf"],
)
def test_a_path_that_leads_out_of_the_cache_is_refused(hub: FakeHub, pull: Program, path: str) -> None:
    entry = {"type": "file", "path": path, "size": 4, "oid": "0" * 40, "lfs": {"oid": sha256(b"evil"), "size": 4}}
    hub.repos[NAME].extra_entries = [entry]
    said = pull.fails(NAME)
    assert "no honest repository" in said and "\n.gguf" not in said
    assert hub.asked("storage") == [] and not list(pull.home.rglob("*evil*"))


@pytest.mark.parametrize("oid", ["../../../evil", "", "0" * 63, "g" * 64])
def test_a_checksum_that_is_none_is_refused(hub: FakeHub, pull: Program, oid: str) -> None:
    hub.repos[NAME].extra_entries = [
        {"type": "file", "path": "evil.gguf", "size": 4, "oid": "0" * 40, "lfs": {"oid": oid, "size": 4}}
    ]
    assert "no honest repository" in pull.fails(NAME)


@pytest.mark.parametrize("commit", ["main", "../../../../evil", "c" * 39, "c" * 39 + "/"])
def test_a_commit_that_is_none_is_refused(hub: FakeHub, pull: Program, commit: str) -> None:
    hub.repos[NAME].commit = commit
    assert "no honest repository" in pull.fails(NAME)
    assert not pull.cache.exists()


def test_a_branch_that_leads_out_of_the_cache_is_refused(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME].branch = "../../../evil"
    assert "no honest repository" in pull.fails(NAME)


@pytest.mark.parametrize("name", ["tiny", "../x", "acme/../x", "acme/tiny:", "https://evil/acme/tiny", "a/b/c"])
def test_a_name_that_is_none_is_refused(hub: FakeHub, pull: Program, name: str) -> None:
    assert "user/repo" in pull.fails(name)
    assert hub.log == []


def test_a_missing_repository_is_named(hub: FakeHub, pull: Program) -> None:
    for environment in ({}, {"HF_TOKEN": TOKEN}):
        said = pull.fails("acme/absent", **environment)
        assert "acme/absent is not at" in said and hub.endpoint in said


def test_a_gated_repository_says_what_to_do(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME].gated = True
    said = pull.fails(NAME)
    assert "gated" in said and f"{hub.endpoint}/{NAME}" in said and "HF_TOKEN" in said and "none was sent" in said
    said = pull.fails(NAME, HF_TOKEN="hf_" + "w" * 34)
    assert "the one given was sent" in said and "www" not in said
    assert pull.fetch(NAME, HF_TOKEN=TOKEN).read_bytes() == CONTENT


def test_a_private_repository_needs_a_token(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME].private = True
    assert "private" in pull.fails(NAME)
    token = pull.home / ".cache/huggingface/token"
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_text(f"{TOKEN}\n")
    assert pull.fetch(NAME).read_bytes() == CONTENT


def test_the_token_goes_to_the_hub_alone(hub: FakeHub, pull: Program) -> None:
    pull.fetch(NAME, HF_TOKEN=TOKEN)
    sent = [headers.get("Authorization") for _, headers in hub.asked("hub")]
    assert sent == [f"Bearer {TOKEN}"] * 3
    assert hub.asked("storage") and all("Authorization" not in headers for _, headers in hub.asked("storage"))


def test_a_token_with_a_line_end_inside_is_refused(hub: FakeHub, pull: Program) -> None:
    assert "--hf-token" in pull.fails(NAME, HF_TOKEN="hf_a\r\nX: b")
    assert hub.log == []


def test_offline_nothing_is_asked(hub: FakeHub, pull: Program) -> None:
    said = pull.fails(NAME, HF_HUB_OFFLINE="1")
    assert "not in the cache" in said and str(pull.cache) in said
    path = pull.fetch(NAME)
    asked = len(hub.log)
    assert pull.fetch(NAME, HF_HUB_OFFLINE="1") == path
    said = pull.fails(f"{NAME}:Q8_0", LLAMA_ARG_OFFLINE="1")
    assert "not in the cache" in said and FILE in said
    assert len(hub.log) == asked


def test_without_a_network_the_cache_is_used(hub: FakeHub, pull: Program) -> None:
    path = pull.fetch(NAME)
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    ran = pull.run(NAME, **nowhere)
    assert ran.stdout.strip() == str(path) and "FromCache" in ran.stderr
    said = pull.fails(f"{NAME}:Q8_0", **nowhere)
    assert "127.0.0.1:1 cannot be reached" in said


def test_a_new_commit_shares_what_has_not_changed(hub: FakeHub, pull: Program) -> None:
    pull.fetch(NAME)
    pull.fetch(f"{NAME}:Q8_0")
    hub.repos[NAME].commit = "d" * 40
    path = pull.fetch(NAME)
    assert "d" * 40 in str(path) and path.read_bytes() == CONTENT and len(hub.asked("storage")) == 2
    # A file that only the old commit has on this machine is still found.
    assert pull.fetch(f"{NAME}:Q8_0", HF_HUB_OFFLINE="1").read_bytes() == OTHER
    assert pull.fetch(NAME, HF_HUB_OFFLINE="1") == path


def test_an_old_model_stays_until_the_new_one_is_whole(hub: FakeHub, pull: Program) -> None:
    old = pull.fetch(NAME)
    hub.repos[NAME] = Repo({FILE: OTHER}, commit="d" * 40)
    hub.faults = Faults(statuses=[(403, {})])
    pull.fails(NAME)
    assert pull.fetch(NAME, HF_HUB_OFFLINE="1") == old and old.read_bytes() == CONTENT


def test_models_are_removed_and_other_files_are_not(hub: FakeHub, pull: Program) -> None:
    first, second = pull.fetch(NAME), pull.fetch(f"{NAME}:Q8_0")
    readme = first.parent / "README.md"
    readme.write_text("of another program")
    assert FILE in pull.run("--remove", f"{NAME}:q4_k_m").stdout
    assert not first.is_symlink() and second.exists() and len(pull.blobs()) == 1
    assert "not in the cache" in pull.fails("--remove", f"{NAME}:Q4_K_M")
    assert "rest: true" in pull.run("--remove", NAME).stdout
    assert readme.exists() and pull.blobs() == []
    readme.unlink()
    pull.fetch(NAME)
    pull.run("--remove", NAME)
    assert not (pull.cache / "models--acme--tiny-GGUF").exists()


def test_content_that_another_name_needs_is_kept(hub: FakeHub, pull: Program) -> None:
    hub.repos[NAME] = Repo({"a-Q4_0.gguf": OTHER, "a-Q8_0.gguf": OTHER})
    pull.fetch(f"{NAME}:Q4_0")
    other = pull.fetch(f"{NAME}:Q8_0")
    assert "bytes: 0" in pull.run("--remove", f"{NAME}:Q4_0").stdout
    assert other.read_bytes() == OTHER


def test_removing_follows_no_link_out_of_the_cache(hub: FakeHub, pull: Program, tmp_path: Path) -> None:
    precious = tmp_path / ("e" * 64)
    precious.write_text("precious")
    pull.fetch(NAME)
    link = pull.cache / "models--acme--tiny-GGUF/snapshots" / ("c" * 40) / "evil-Q2_K.gguf"
    link.symlink_to(precious)
    pull.run("--remove", f"{NAME}:Q2_K")
    assert precious.read_text() == "precious" and not link.is_symlink()
