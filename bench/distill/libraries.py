#!/usr/bin/env python3
"""A step of training by candle and by burn, taking turns: writes libraries.md.

Both run the step of distill/examples/step.rs: forward, backward and AdamW over four blocks of SmolLM2's width, 256 tokens, with the same numbers,
so that loss and gradient can be compared. Burn runs on the processor (its backend `flex`) and by wgpu on a Vulkan device, which may be Mesa's
lavapipe; that one is about being right, not fast. burn wants Rust 1.95 or newer: BURN_TOOLCHAIN names a toolchain.
"""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILDS = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
TOOLCHAIN = os.environ.get("BURN_TOOLCHAIN", "stable")
TURNS, STEPS = 4, 6
VOCAB, SMALL_VOCAB = 8192, 512
STEP = re.compile(r"a step ([\d.]+)(ms|s); loss ([\d.]+), gradient ([\d.]+)")


class Step(NamedTuple):
    seconds: float
    loss: float
    gradient: float


def steps(command: list[str | Path], vocab: int, count: int, threads: int) -> list[Step]:
    """The steps that a program made."""
    environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    said = subprocess.run([*command, str(vocab), str(count)], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [Step(float(time) / (1000 if unit == "ms" else 1), float(loss), float(gradient)) for time, unit, loss, gradient in STEP.findall(said)]
    assert len(found) == count, said
    return found


def build() -> dict[str, list[str | Path]]:
    subprocess.run(["cargo", "build", "--release", "--locked", "--example", "step", "--target-dir", BUILDS], cwd=ROOT / "distill", check=True)
    cargo = ["cargo", f"+{TOOLCHAIN}", "build", "--release", "--target-dir", BUILDS / "burn"]
    subprocess.run(cargo, cwd=HERE / "burn", check=True)
    burn = BUILDS / "burn" / "release" / "burn-step"
    return {"candle": [BUILDS / "release" / "examples" / "step"], "burn, flex": [burn, "flex"], "burn, wgpu on Vulkan": [burn, "wgpu"]}


def main() -> None:
    programs = build()
    on_processor = ("candle", "burn, flex")
    times: dict[tuple[str, int], list[float]] = {}
    for turn in range(TURNS):
        for threads in (1, 2):
            for name in on_processor:
                print(f"turn {turn + 1} of {TURNS}: {name}, {threads} threads", file=sys.stderr, flush=True)
                # The first step warms up.
                times.setdefault((name, threads), []).extend(step.seconds for step in steps(programs[name], VOCAB, STEPS, threads)[1:])
    speed = ["| library | threads | a step, median | least | most |", "|---|--:|--:|--:|--:|"]
    for (name, threads), found in times.items():
        speed.append(f"| {name} | {threads} | {statistics.median(found):.2f} s | {min(found):.2f} s | {max(found):.2f} s |")
    agreement = ["| library | step | loss | length of the gradient |", "|---|--:|--:|--:|"]
    for name, command in programs.items():
        for at, step in enumerate(steps(command, SMALL_VOCAB, 3, 2), 1):
            agreement.append(f"| {name} | {at} | {step.loss:.5f} | {step.gradient:.6f} |")
    text = f"""# A step of training by candle and by burn

Made by `just distill-libraries`: forward, backward and AdamW over four blocks of SmolLM2's width, 256 tokens, {VOCAB:,} tokens in the vocabulary. {TURNS} turns of
{STEPS} steps each, the first of them left out. candle's step is ours, with operations that have passes back of their own
([ADR 0057](../../docs/adr/0057-training-in-a-program-of-its-own.md)); burn's is composed of its operations. Shaders reach Vulkan as WGSL: those of burn's feature
`vulkan`, which compiles them to SPIR-V itself, crash Mesa's lavapipe (22.3 and 25.0) where it compiles them.

{chr(10).join(speed)}

The same three steps with {SMALL_VOCAB} tokens in the vocabulary, for what they compute. The first one compares passes forward and back; the others differ, as ours shortens
gradients that are longer than 1 and has weights decay, and burn's here does not.

{chr(10).join(agreement)}
"""
    (HERE / "libraries.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
