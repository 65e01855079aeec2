#!/usr/bin/env python3
"""Check that files written by `forerun distill` run in llama.cpp's own tools: writes tools.md.

LLAMA_COMPLETION and LLAMA_SPECULATIVE name its llama-completion and llama-speculative-simple. Students are trained for half a minute each:
this is about their files, not about how well they draft.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from distill import BLOCKS, FORERUN, HERE, MODELS, SMOLLM2

GEMMA = MODELS / "gemma-3-270m.Q4_K_M.gguf"
PROMPT = "The capital of France is Paris. The capital of Italy is"
TOKENS = 48


NOT_ITS_VOCABULARY = "the target and draft vocabs are not compatible"


class Student(NamedTuple):
    """A student of a target, and how llama.cpp's speculation is asked to use it."""

    name: str
    target: Path
    flags: list[str | Path]
    speculation: str
    # What it says where it cannot draft with the student.
    refusal: str | None = None

    @property
    def stands_alone(self) -> bool:
        """Whether it is a model of its own; a head reads the target's states."""
        return "--head" not in self.flags


STUDENTS = [
    Student("blocks of the target, Q8_0", SMOLLM2, ["--keep-blocks", BLOCKS], "draft-simple"),
    Student("blocks of the target, Q4_0", SMOLLM2, ["--keep-blocks", BLOCKS, "--type", "Q4_0"], "draft-simple"),
    Student("an EAGLE-3 head", SMOLLM2, ["--head", "eagle3"], "draft-eagle3"),
    Student("SmolLM2 with all of Gemma 3's tokens", GEMMA, ["--student", SMOLLM2, "--transplant", "262144"], "draft-simple"),
    Student("SmolLM2 with 8,192 of Gemma 3's tokens", GEMMA, ["--student", SMOLLM2, "--transplant", "8192"], "draft-simple", NOT_ITS_VOCABULARY),
]


def run(command: list[str | Path], refusal: str | None = None) -> str:
    """What a command said that succeeds, or fails saying so."""
    print("$", *command, file=sys.stderr, flush=True)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    as_expected = refusal in done.stdout and done.returncode != 0 if refusal else done.returncode == 0
    if not as_expected:
        sys.exit(f"{done.stdout[-4000:]}\nexit status {done.returncode}")
    return done.stdout


def number(said: str, name: str) -> int:
    found = re.search(rf"{name}\s*= (\d+)", said)
    assert found, said
    return int(found[1])


def main() -> None:
    completion, speculative = os.environ["LLAMA_COMPLETION"], os.environ["LLAMA_SPECULATIVE"]
    version = re.search(r"version: (.+)", run([completion, "--version"]))
    rows = ["| student | llama-completion | llama-speculative-simple |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for student in STUDENTS:
            path = Path(folder) / "student.gguf"
            data = ["-n", "32", "-c", "256", "--held-out", "8", "--epochs", "1", "--time-limit", "30s", "--rows", Path(folder) / student.target.stem]
            run([FORERUN, "distill", "-m", student.target, *student.flags, *data, "-o", path])
            alone = "a head has no tokens of its own"
            greedy = ["-p", PROMPT, "-n", str(TOKENS), "--temp", "0", "-c", "256"]
            if student.stands_alone:
                said = run([completion, "-m", path, *greedy, "-no-cnv", "--no-display-prompt"])
                assert "eval time" in said, said
                alone = "runs"
            flags = [*greedy, "--spec-type", student.speculation, "--spec-draft-n-max", "3"]
            said = run([speculative, "-m", student.target, "-md", path, *flags], student.refusal)
            if student.refusal:
                together = f"refused: {student.refusal}"
            else:
                drafted, accepted = number(said, "n_drafted"), number(said, "n_accept")
                assert drafted, said
                together = f"{number(said, 'n_predict')} tokens, {accepted} of {drafted} drafted tokens accepted"
            rows.append(f"| {student.name} | {alone} | {together} |")
            path.unlink()
    text = f"""# Files of `forerun distill` in llama.cpp's own tools

Made by `just distill-tools`, by llama.cpp {version[1] if version else "of an unknown version"}. Each student was trained for half a minute.

{chr(10).join(rows)}
"""
    (HERE / "tools.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
