#!/usr/bin/env python3
"""What a batch of verdicts costs: beside one streaming read of its rows, and beside plain torch.

`just verify-batch` runs it. Rows are made here and written to a file, which the Rust example `batch` reads; each round
times, one after the other, the batch and the read of the very rows its verdicts depend on, on one thread and on all,
then the wheel and torch. Writes batch.md beside this file. Figures are of use on an idle machine alone.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import forerun as fr
from forerun.torch import block_verify

HERE = Path(__file__).parent
SEQUENCES, LENGTH, VOCAB = 32, 4, 151_936
CORES = os.cpu_count() or 1
AIM = 1.2


def make_rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits like a language model's, a few likely tokens and a long tail; a drafter that is near; drawn tokens."""
    target = rng.standard_normal((SEQUENCES, LENGTH + 1, VOCAB), dtype=np.float32) * 2
    likely = rng.integers(VOCAB, size=(SEQUENCES, LENGTH + 1, 8))
    np.put_along_axis(target, likely, 12.0 - 0.7 * np.arange(8, dtype=np.float32), axis=2)
    draft = target[:, :LENGTH] + rng.standard_normal((SEQUENCES, LENGTH, VOCAB), dtype=np.float32)
    noise = rng.gumbel(size=draft.shape).astype(np.float32)
    return target, draft, (draft + noise).argmax(axis=2).astype(np.uint32)


class Rust:
    """The example, which answers each line with times."""

    def __init__(self, binary: str, file: Path) -> None:
        sizes = map(str, (SEQUENCES, LENGTH, VOCAB))
        self.process = subprocess.Popen(
            [binary, str(file), *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self, threads: int, drafts: str) -> tuple[float, float, int, list[int], list[int]]:
        """Seconds of the batch, seconds of the read, rows read, and the verdicts."""
        assert self.process.stdin and self.process.stdout
        print(threads, drafts, file=self.process.stdin, flush=True)
        judged, read, rows, accepted, following = self.process.stdout.readline().split()
        verdicts = [[int(number) for number in some.split(",")] for some in (accepted, following)]
        return int(judged) / 1e9, int(read) / 1e9, int(rows), *verdicts


def timed(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(binary: str, rounds: int) -> tuple[dict, dict]:
    """Times of every kind, one of each a round, and how many rows and accepted tokens there were."""
    target, draft, tokens = make_rows(np.random.default_rng(1))
    with tempfile.NamedTemporaryFile() as file:
        for array in (target, draft, tokens):
            array.tofile(file)
        file.flush()
        rust = Rust(binary, Path(file.name))
        # The first answer comes when the file is read.
        first = rust.round(1, "drafted")
    wheel = fr.verify_batch(tokens, None, target, draft_logits=draft, seeds=range(SEQUENCES))
    assert (wheel.accepted.tolist(), wheel.next.tolist()) == (first[3], first[4]), "one rule, one verdict"
    torch.set_num_threads(CORES)
    torch_rows = torch.from_numpy(target), torch.from_numpy(draft)
    torch_tokens = torch.from_numpy(tokens.astype(np.int64))

    def in_torch() -> None:
        block_verify(torch_tokens, torch_rows[1].softmax(-1), torch_rows[0].softmax(-1))

    in_torch()
    times, counts = defaultdict(list), defaultdict(list)
    for number in range(rounds):
        for drafts in ("drafted", "fixed"):
            for threads in (1, CORES):
                judged, read, rows, accepted, _ = rust.round(threads, drafts)
                times["batch", drafts, threads].append(judged)
                times["read", drafts, threads].append(read)
                counts["rows", drafts].append(rows)
                counts["accepted", drafts].append(sum(accepted))
        seeds = range(number * SEQUENCES, (number + 1) * SEQUENCES)
        judge = lambda: fr.verify_batch(tokens, None, target, draft_logits=draft, seeds=seeds)  # noqa: E731
        times["wheel", "drafted", CORES].append(timed(judge))
        times["torch", "drafted", CORES].append(timed(in_torch))
    rust.process.stdin.close()
    rust.process.wait()
    return times, counts


def interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """The median with its 95 % interval by bootstrap over rounds."""
    again = np.median(rng.choice(values, (2_000, len(values))), axis=1)
    low, high = np.quantile(again, [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def table(times: dict, counts: dict) -> list[str]:
    rng = np.random.default_rng(2)
    lines = ["| drafts | threads | one read of the rows | the batch | batch over read |", "|---|--:|--:|--:|--:|"]
    for drafts, threads in ((drafts, threads) for drafts in ("drafted", "fixed") for threads in sorted({1, CORES})):
        batch, read = (np.array(times[kind, drafts, threads]) for kind in ("batch", "read"))
        shown = [f"{np.median(some) * 1e3:.1f} ms" for some in (read, batch)]
        ratio, low, high = interval(batch / read, rng)
        lines.append(f"| {drafts} | {threads} | {shown[0]} | {shown[1]} | **{ratio:.2f}** ({low:.2f}–{high:.2f}) |")
    lines += ["", f"| {CORES} threads, drafted | time | over the batch in Rust |", "|---|--:|--:|"]
    batch = np.array(times["batch", "drafted", CORES])
    for kind, name in (("wheel", "`forerun.verify_batch`, the wheel"), ("torch", "`forerun.torch.block_verify`, plain torch")):
        mine = np.array(times[kind, "drafted", CORES])
        ratio, low, high = interval(mine / batch, rng)
        lines.append(f"| {name} | {np.median(mine) * 1e3:.1f} ms | {ratio:.2f} ({low:.2f}–{high:.2f}) |")
    return lines


def report(times: dict, counts: dict, rounds: int, seconds: float) -> str:
    text = (HERE / "batch.template.md").read_text()
    accepted = [np.mean(counts["accepted", drafts]) / SEQUENCES for drafts in ("drafted", "fixed")]
    rows = [np.mean(counts["rows", drafts]) for drafts in ("drafted", "fixed")]
    values = {
        "TABLE": "\n".join(table(times, counts)),
        "PROCESSOR": f"{processor()}, {CORES} cores",
        "ROUNDS": str(rounds),
        "SECONDS": f"{seconds:.0f}",
        "ACCEPTED": f"{accepted[0]:.1f} and {accepted[1]:.1f}",
        "ROWS": f"{rows[0]:.0f} and {rows[1]:.0f}",
        "TORCH": torch.__version__,
        "LOAD": f"{os.getloadavg()[0]:.1f}",
    }
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="the example `batch`")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, default=HERE / "batch.md")
    options = parser.parse_args()
    start = time.perf_counter()
    times, counts = measure(options.binary, options.rounds)
    text = report(times, counts, options.rounds, time.perf_counter() - start)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
