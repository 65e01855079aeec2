"""`-md auto`: a draft model that is found by its vocabulary, with real models behind the hub of these tests."""

import os
import shutil
from pathlib import Path

import pytest
from conftest import Program
from fake_hub import FakeHub, Repo

MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
# Half as large as the target, and with its vocabulary.
TARGET, DRAFT = "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-pruned-8+0.gguf"
HEAD, OTHER = "SmolLM2-135M-Instruct.eagle3.gguf", "zoo/llama.gguf"
ASK = ("-p", "The three primary colours are", "-n", "8", "--temp", "0", "-t", "1", "-q")


@pytest.fixture
def forerun(hub: FakeHub, tmp_path: Path) -> Program:
    if "FORERUN_BIN" not in os.environ or not (MODELS / TARGET).exists():
        pytest.skip("FORERUN_BIN names no binary, or `just models` did not run")
    return Program(hub, tmp_path, [os.environ["FORERUN_BIN"]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of models; the target is in it."""
    folder = tmp_path / "models"
    folder.mkdir()
    os.symlink(MODELS / TARGET, folder / "target.gguf")
    return folder


def ask(forerun: Program, *model: str, code: int = 0) -> tuple[str, str]:
    """What a target says with `-md auto`, and the line on what was found."""
    run = forerun.run("generate", *model, "-md", "auto", *ASK, code=code)
    found = [line for line in run.stderr.splitlines() if "drafting" in line or "no draft" in line]
    assert len(found) == 1 or code, run.stderr
    return run.stdout, "".join(found)


def plain(forerun: Program, folder: Path) -> str:
    return forerun.run("generate", "-m", str(folder / "target.gguf"), *ASK).stdout


def test_the_smallest_model_with_the_vocabulary_is_taken(forerun: Program, folder: Path) -> None:
    for name in (DRAFT, "SmolLM2-135M-Instruct.Q4_0.gguf"):
        os.symlink(MODELS / name, folder / name)
    # Smaller still, but of another family; a name proves nothing.
    shutil.copy(MODELS / OTHER, folder / "SmolLM2-tiny-Q8_0.gguf")
    (folder / "damaged-Q8_0.gguf").write_bytes(b"GGUF")
    text, found = ask(forerun, "-m", str(folder / "target.gguf"))
    assert f"drafting with {DRAFT} (" in found and "target.gguf" in found
    assert text == plain(forerun, folder)


def test_where_there_is_none_the_text_is_drafted_from(forerun: Program, folder: Path) -> None:
    # The same vocabulary, but hardly smaller than the target.
    os.symlink(MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf", folder / "near-Q4_1.gguf")
    text, found = ask(forerun, "-m", str(folder / "target.gguf"))
    assert "no draft model was found" in found and "from the text alone" in found
    assert text == plain(forerun, folder)
    insisting = forerun.run(
        "generate", "-m", str(folder / "target.gguf"), "-md", "auto", "--spec-type", "draft-model", *ASK, code=2
    )
    assert "no draft model was found" in insisting.stderr and "--spec-draft-model FILE" in insisting.stderr


def test_cached_models_are_found_offline(hub: FakeHub, forerun: Program, folder: Path) -> None:
    hub.repos["acme/small"] = Repo({"small-Q4_0.gguf": (MODELS / DRAFT).read_bytes()})
    forerun.run("pull", "acme/small")
    asked = len(hub.log)
    text, found = ask(forerun, "-m", str(folder / "target.gguf"), "--offline")
    assert "drafting with acme/small:Q4_0 (" in found and text == plain(forerun, folder)
    assert len(hub.log) == asked


def test_a_head_in_the_repository_goes_first(hub: FakeHub, forerun: Program, folder: Path) -> None:
    files = {"big-Q8_0.gguf": (MODELS / TARGET).read_bytes(), "eagle3-big-Q8_0.gguf": (MODELS / HEAD).read_bytes()}
    hub.repos["acme/big"] = Repo(files | {"big-Q2_K.gguf": (MODELS / DRAFT).read_bytes()})
    text, found = ask(forerun, "-hf", "acme/big:Q8_0")
    assert "drafting with eagle3-big-Q8_0.gguf (" in found and text == plain(forerun, folder)


def test_a_head_of_another_family_is_left_aside(hub: FakeHub, forerun: Program, folder: Path) -> None:
    files = {"big-Q8_0.gguf": (MODELS / TARGET).read_bytes(), "eagle3-big-Q8_0.gguf": (MODELS / OTHER).read_bytes()}
    hub.repos["acme/big"] = Repo(files)
    text, found = ask(forerun, "-hf", "acme/big:Q8_0")
    assert "no draft model was found" in found and text == plain(forerun, folder)


def test_a_known_drafter_comes_from_the_hub_and_is_checked(hub: FakeHub, forerun: Program) -> None:
    family, grown = "bartowski/SmolLM2-135M-Instruct-GGUF", "SmolLM2-grown-x8.gguf"
    hub.repos["acme/grown"] = Repo({"grown-Q4_1.gguf": (MODELS / grown).read_bytes()})
    run = ("-hf", "acme/grown")
    # Not there: that is said, and the text is drafted from.
    said = forerun.run("generate", *run, "-md", "auto", *ASK).stderr
    assert f"{family} is not used" in said and "from the text alone" in said
    # Another model of that name: what it is called is not believed.
    hub.repos[family] = Repo({"SmolLM2-135M-Instruct-Q4_K_M.gguf": (MODELS / OTHER).read_bytes()})
    said = forerun.run("generate", *run, "-md", "auto", *ASK).stderr
    assert f"{family} has another vocabulary" in said and "from the text alone" in said
    hub.repos[family] = Repo({"SmolLM2-135M-Instruct-Q4_K_M.gguf": (MODELS / DRAFT).read_bytes()}, commit="d" * 40)
    _, found = ask(forerun, *run)
    assert f"drafting with {family} (" in found


def test_a_word_of_ours_is_no_file(forerun: Program, folder: Path) -> None:
    wrong = forerun.run("generate", "-m", str(folder / "target.gguf"), "-md", "./auto", *ASK, code=1)
    assert "auto" in wrong.stderr
    unused = forerun.run("generate", "-m", "absent.gguf", "-md", "auto", "--spec-type", "ngram", *ASK, code=2)
    assert "--spec-draft-model would do nothing" in unused.stderr


def test_tune_tries_what_is_found(forerun: Program, folder: Path) -> None:
    os.symlink(MODELS / DRAFT, folder / DRAFT)
    quick = ("--quick", "-t", "1", "-n", "4", "--time-limit", "20s", "--spec-draft-n-max", "1", "--spec-draft-paths", "1")
    tuned = forerun.run("tune", str(folder / "target.gguf"), "--draft", "auto", *quick, timeout=120)
    assert Path(DRAFT).stem in tuned.stdout
