#!/usr/bin/env python3
"""Record a real chat in a real terminal and draw it: writes docs/terminal.svg.

usage: docs/terminal.py FORERUN MODELS        (needs: tmux; pip install rich)

FORERUN is the binary, MODELS the folder of `just models`. Nothing is edited: what the terminal shows is drawn.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, ROWS = 100, 30
COMMAND = (
    "forerun chat -m SmolLM2-135M-Instruct.Q4_1.gguf -md SmolLM2-pruned-14+13.gguf"
    " --show-drafts --temp 0.7 -n 90 -s 7"
)
QUESTION = "Give me three tips for learning to cook."


def tmux(*arguments: str) -> str:
    """Talk to the terminal."""
    command = ["tmux", "-L", "forerun", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def screen() -> str:
    """What the terminal shows, colours included."""
    return tmux("capture-pane", "-e", "-p")


def wait_for(text: str, count: int = 1) -> None:
    """Wait until the screen shows a text so many times."""
    for _ in range(600):
        if tmux("capture-pane", "-p").count(text) >= count:
            return
        time.sleep(0.1)
    sys.exit(f"the terminal never showed {text!r}:\n{screen()}")


def main(forerun: str, models: str) -> None:
    """Record and draw."""
    path = f"PATH={Path(forerun).resolve().parent}:$PATH PS1='$ ' sh"
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", models, path)
    try:
        time.sleep(1)
        tmux("send-keys", COMMAND, "Enter")
        wait_for("the target's own")
        tmux("send-keys", QUESTION, "Enter")
        wait_for("tokens/s")
        tmux("send-keys", "/stats", "Enter")
        wait_for("seed", 2)
        shown = screen().rstrip().removesuffix(">").rstrip()
    finally:
        tmux("kill-server")
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w", encoding="utf-8"))
    console.print(Text.from_ansi(shown))
    drawn = console.export_svg(title="forerun chat", theme=MONOKAI)
    # The reader's own monospaced font; a picture fetches nothing from elsewhere.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    Path(__file__).with_suffix(".svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
