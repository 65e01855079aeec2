#!/usr/bin/env python3
"""How fast prompts are read, by the number formats of the KV cache: writes prefill.md.

One server for each pair of formats, all loaded; they take turns, prompt by prompt, so that what slows the machine down slows
all of them.
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

import server

MODELS = ("SmolLM2-135M-Instruct.Q8_0.gguf", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf")
FORMATS = {
    "bf16 and f16 (default)": (),
    "f16 and f16 (llama.cpp's)": ("--cache-type-k", "f16", "--cache-type-v", "f16"),
    "f32 and f32": ("--cache-type-k", "f32", "--cache-type-v", "f32"),
}
# Characters of a prompt: four are about a token of code.
LENGTHS = (400, 1600, 4800)
TEXT = Path(__file__).resolve().parents[2] / "crates/serve/src/worker/schedule.rs"


def read(under_test: server.Server, prompt: str) -> tuple[int, float, float]:
    """Tokens of a prompt, how many were read in a second, and how many decoded after it."""
    body = {"prompt": prompt, "n_predict": 32, "temperature": 0, "cache_prompt": False, "ignore_eos": True}
    request = urllib.request.Request(
        f"{under_test.url}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        timings = json.load(answer)["timings"]
    return timings["prompt_n"], timings["prompt_per_second"], timings["predicted_per_second"]


def measured(model: str, repeats: int, folder: Path) -> list[str]:
    def start(number: int, flags: tuple[str, ...]) -> server.Server:
        fixed = ("-m", str(server.MODELS / model), "-c", "4096", "-np", "1", "--spec-type", "none")
        return server.Server("forerun", server.forerun(*fixed, *flags), folder / f"{number}.log")

    text, rows = TEXT.read_text(), []
    servers = [start(number, flags) for number, flags in enumerate(FORMATS.values())]
    with server.serving(servers):
        for length in LENGTHS:
            found = [[read(it, f"{repeat} {text[:length]}") for it in servers] for repeat in range(repeats)]
            for at, name in enumerate(FORMATS):
                tokens = found[0][at][0]
                read_s, decoded_s = (statistics.median(turn[at][part] for turn in found) for part in (1, 2))
                rows.append(f"| {model} | {tokens} | {name} | {read_s:.0f} | {tokens / read_s:.1f} | {decoded_s:.1f} |")
                print(rows[-1], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of each prompt; default: %(default)s")
    given = parser.parse_args()
    started, rows = time.monotonic(), list[str]()
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(model, given.repeats, Path(folder))
    where, minutes = server.machine(), (time.monotonic() - started) / 60
    text = f"""# How fast prompts are read, by the formats of the KV cache

Made by `just prefill --repeats {given.repeats}` in {minutes:.0f} minutes, {time.strftime("%Y-%m-%d", time.gmtime())}, {server.version(server.FORERUN)}. Machine: {where["processor"]},
{where["threads"]} threads. Formats are `--cache-type-k` and `--cache-type-v`; medians of {given.repeats} turns, plain decoding of 32 tokens after the prompt.

llama.cpp reads 64 tokens and more at once by a faster kernel where keys and values are both f16 or both f32. The default has equal rows
alone and in a block instead ([ADR 0027](../../docs/adr/0027-cached-keys-are-bf16-on-x86-64.md), [drift](../decode/drift.md)).

| model | prompt | keys and values | tokens read a second | seconds | tokens decoded a second |
|---|--:|---|--:|--:|--:|
""" + "\n".join(rows) + "\n"
    (Path(__file__).parent / "prefill.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
