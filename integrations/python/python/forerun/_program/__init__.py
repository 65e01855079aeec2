"""The command `forerun`, which comes with the wheel: this starts the program beside it."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Become the program."""
    program = Path(__file__).parent / "bin" / "forerun"
    if not program.is_file():
        sys.exit("this wheel has the module alone: build one with the program by tools/package.sh, see RELEASING.md")
    os.execv(program, ["forerun", *sys.argv[1:]])
