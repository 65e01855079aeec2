#!/usr/bin/env python3
"""Run Forerun on a Vulkan device, by default the first one, which may be Mesa's lavapipe: writes vulkan.md.

Builds with `--features vulkan` in a folder of its own. On lavapipe (a Vulkan driver that runs on the processor) it shows
that the device's path is right, not how fast it is. Fails if rows, drafted text or a certificate are not what they should be.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
TARGET, DRAFT = "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf"
PROMPT = "Once upon a time, in a small town by the sea, there was a lighthouse keeper who"
# As in llama.cpp's own test of lavapipe; without the first, devices that are processors are passed over.
LAVAPIPE = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1", "GGML_VK_DISABLE_COOPMAT": "1"}

# The test that asks for more memory than the device has.
TOO_LARGE = "a_cache_that_does_not_fit_is_an_error_and_the_next_engine_runs"


def run(command: list[str], environment: dict[str, str], memory: int | None = None) -> str:
    """What a command says. With `memory`, in so many bytes of addresses."""
    print("$", " ".join(command), file=sys.stderr, flush=True)

    def limit() -> None:
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=limit)
    if done.returncode:
        sys.exit(f"{done.stdout}\nexit status {done.returncode}")
    return done.stdout


def main() -> None:
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "vulkan"
    environment = LAVAPIPE | os.environ | {"CARGO_TARGET_DIR": str(target)}
    devices = re.findall(r"deviceName\s+= (.+)", run(["vulkaninfo", "--summary"], environment))
    device = devices[int(environment["GGML_VK_VISIBLE_DEVICES"])]
    tests = "cargo test --quiet -p forerun-llama --features vulkan --test gpu -- --nocapture --test-threads 1".split()
    rows = run([*tests, "--skip", TOO_LARGE], environment)
    # A card has so much memory. A driver that runs on the processor has what the system gives it, which is more than there is.
    rows += run([*tests, TOO_LARGE], environment, 16 << 30 if "llvmpipe" in device else None)
    print(rows, flush=True)
    run("cargo build --quiet -p forerun --features vulkan".split(), environment)
    forerun = str(target / "debug" / "forerun")
    models = ["-m", str(MODELS / TARGET), "-c", "512"]
    drafts = ["-md", str(MODELS / DRAFT), "--spec-adaptive", "off", "--draft-max", "4"]
    greedy = ["-p", PROMPT, "-n", "64", "--temp", "0", "--json"]
    plain, drafted, host = (
        json.loads(run([forerun, "generate", *models, *more, *greedy], environment))
        for more in ([], drafts, ["-ngl", "0"])
    )
    shared = len(os.path.commonprefix([plain["tokens"], drafted["tokens"]]))
    shared_with_host = len(os.path.commonprefix([plain["tokens"], host["tokens"]]))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out, prompts = Path(folder) / "certificate.html", Path(folder) / "prompts.txt"
        # A driver that runs on the processor gives a few tokens a second: one prompt, few sequences.
        prompts.write_text(f"{PROMPT}\n")
        asked = ["--prompts", str(prompts), "--parallel", "4", "--power", "0.3", "--time-limit", "40m"]
        run([forerun, "certify", *models, *drafts[:2], *asked, "--out", str(out)], environment)
        found = json.loads(out.with_suffix(".json").read_text())
    took = time.monotonic() - began
    decoder = found["decoder"]
    apart = re.search(r"(\d+) rows: ([\d.]+) apart on average, ([\d.]+) of", rows)
    kept = [float(number) for number in re.findall(r"node \d+: ([\d.]+) from the right row", rows)]
    refusal = next(line for line in rows.splitlines() if "cache" in line and "rows" not in line)
    (HERE / "vulkan.md").write_text(f"""# Forerun on a Vulkan device

Made by `just vulkan`. Device: {device}. Target {TARGET}, all layers on the device; draft model {DRAFT}.

| what | found |
|---|---|
| rows beside the processor's | {apart[1]} rows, {apart[2]} apart on average (total variation), most likely token equal in {float(apart[3]):.0%} |
| rows after keeping a node of a tree, beside its path read alone | at most {max(kept):.4f} apart, {len(kept)} nodes |
| a cache that does not fit | refused: "{refusal.strip()}" |
| greedy text, drafts of 4, beside plain | the first {shared} of {len(plain["tokens"])} tokens are equal |
| greedy text, plain, beside the processor's | the first {shared_with_host} of {len(host["tokens"])} tokens are equal |
| `forerun certify --power 0.3`, {took:.0f} s | **{found["verdict"]}**: {decoder["tokens"]:,} tokens, {decoder["accepted"]:,} of {decoder["drafted"]:,} drafted tokens accepted |

Passes over one token and over several are computed by different kernels on a device, so greedy texts part at the first near tie;
this is llama.cpp's drift, and plain decoding has it between batch sizes too.
""")
    print((HERE / "vulkan.md").read_text())
    if found["verdict"] != "passed":
        sys.exit("the certificate did not pass")


if __name__ == "__main__":
    main()
