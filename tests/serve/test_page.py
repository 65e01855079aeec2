"""The page, opened in a headless Chromium: a chat completes, tokens are coloured, the figures move."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Server

CHECK = Path(__file__).parents[2] / "crates/serve/page/check.mjs"

# Where pictures go that are to be kept: `just page` draws those of the documentation.
PICTURES = os.environ.get("FORERUN_PICTURES")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what drives Debian's Chromium."""
    assert Path("/usr/bin/chromium").exists(), "chromium is missing: apt install chromium"
    assert shutil.which("npm"), "npm is missing: apt install npm"
    folder = tmp_path_factory.mktemp("browser")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "playwright-core"]
    subprocess.run(command, check=True)
    return folder


def test_a_chat_completes_and_shows_its_drafts(start: Callable[..., Server], browser: Path) -> None:
    # Drafts of a fixed length: this pair is not one that drafting pays for.
    server = start("--spec-adaptive", "off", "--alias", "SmolLM2-135M-Instruct")
    picture = Path(PICTURES) / "page.png" if PICTURES else browser / "page.png"
    command = ["node", str(CHECK), server.url, str(picture), "Tell me about the ocean."]
    ran = subprocess.run(command, cwd=browser, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert picture.stat().st_size > 10_000


def test_a_lossy_answer_says_what_it_changed(start: Callable[..., Server], browser: Path) -> None:
    server = start("--spec-adaptive", "off", "--lossy-max", "0.05", "--temp", "1")
    command = ["node", str(CHECK), server.url, str(browser / "lossy.png"), "Tell me about the ocean."]
    environment = {**os.environ, "FORERUN_LOSSY": "1"}
    ran = subprocess.run(command, cwd=browser, capture_output=True, text=True, timeout=300, env=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
