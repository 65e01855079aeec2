#!/usr/bin/env python3
"""What lossy verification gains for what it changes, on real pairs of models: writes lossy.md and lossy.svg.

For each pair, `forerun bench` measures lossless decoding, Forerun's lossy modes and published rules in one run, taking turns.
What a mode spends it says itself; what a published rule spends is estimated by `forerun certify --broken`, from its outputs and
the target's rows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

HERE = Path(__file__).parent
BINARY = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/release/forerun")).expanduser()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()

BUDGETS = ("0.01", "0.02", "0.05", "0.1")
PUBLISHED = {
    "typical": "typical acceptance (Medusa)",
    "lenience": "lenience 0.5",
    "specdec": "SpecDec, top 3, 1 nat",
    "sglang": "SGLang's thresholds 0.5",
    "sprinter": "SPRINTER, gate at 0.5",
}
RESAMPLES = 2000


class Pair(NamedTuple):
    name: str
    target: str
    draft: str
    # Of the benchmark, and of an estimate of what a published rule spends: large models take longer. Where the draft model has
    # another vocabulary, that cannot be estimated.
    minutes: int
    spend_seconds: int | None

    @property
    def published(self) -> list[str]:
        return list(PUBLISHED) if self.spend_seconds else []


PAIRS = [
    Pair("Qwen2.5-Coder 1.5B with SmolLM2 135M", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", "SmolLM2-135M-Instruct.Q4_0.gguf", 8, None),
    Pair("SmolLM2 widened to 10 times its size, with 27 of its 30 blocks", "SmolLM2-widened-x16.Q4_0.gguf", "SmolLM2-pruned-14+13.gguf", 8, 60),
    Pair("SmolLM2 135M with 27 of its 30 blocks", "SmolLM2-135M-Instruct.Q8_0.gguf", "SmolLM2-pruned-14+13.gguf", 5, 40),
]


class Point(NamedTuple):
    """A way of verifying: what it changes, and what it gains over lossless verification, with intervals."""

    name: str
    family: str
    promised: float | None
    spent: float
    margin: float
    rounds: tuple[float, float, float]
    speed: tuple[float, float, float]


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # A certificate of a broken decoder ends with 1 or 3.
    if done.returncode not in (0, 1, 3):
        sys.exit(f"{' '.join(command)}\n{done.stdout}")


def bench(pair: Pair, folder: Path) -> dict[str, Any]:
    out = folder / "bench.html"
    modes = [f"{kind}:{budget}" for kind in ("budget", "account") for budget in BUDGETS]
    command = [str(BINARY), "bench", "-m", str(MODELS / pair.target), "--draft", str(MODELS / pair.draft)]
    command += ["--lossy", ",".join([*modes, *pair.published]), "--temp", "1", "--spec-draft-n-max", "4"]
    command += ["--tasks", "mt_bench,summarization,qa,human_eval,gsm8k", "-n", "32", "--repeats", "20", "--precision", "0.001"]
    run([*command, "--time-limit", f"{pair.minutes}m", "--out", str(out), "--force"])
    return json.loads(out.with_suffix(".json").read_text())


def spend(pair: Pair, rule: str, folder: Path) -> tuple[float, float]:
    """What a rule spends at least, and how far off that may be."""
    out = folder / f"{rule}.html"
    command = [str(BINARY), "certify", str(MODELS / pair.target), "-md", str(MODELS / pair.draft), "--broken", rule]
    command += ["--temp", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-s", "1", "--spec-draft-n-max", "4"]
    command += ["--false-alarm", "1e-12", "--time-limit", f"{pair.spend_seconds}s"]
    run([*command, "--out", str(out)])
    found = json.loads(out.with_suffix(".json").read_text())["decoder"]
    return found["spent"], found["spent_margin"]


def gain(of: np.ndarray, base: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """The ratio of two rates, each tokens over something, text by text, and its interval."""
    chosen = rng.integers(0, len(of), (RESAMPLES, len(of)))
    rate = lambda pairs, at: pairs[at, 0].sum(-1) / pairs[at, 1].sum(-1)  # noqa: E731
    all_of_them = np.arange(len(of))
    ratios = rate(of, chosen) / rate(base, chosen)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(rate(of, all_of_them) / rate(base, all_of_them)), float(low), float(high)


def points(report: dict[str, Any], spends: dict[str, tuple[float, float]]) -> list[Point]:
    names = [setting["rule"] for setting in report["config"]["settings"]]
    lossless = names.index("block")
    texts: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    for measure in report["measures"]:
        texts.setdefault((measure["repeat"], measure["prompt"]), {})[measure["setting"]] = measure
    whole = [by_setting for by_setting in texts.values() if len(by_setting) == len(names)]
    rng = np.random.default_rng(1)

    def series(setting: int, over: str) -> np.ndarray:
        return np.array([(text[setting]["tokens"], text[setting][over]) for text in whole], dtype=float)

    found = []
    for setting, rule in enumerate(names):
        if not rule or not rule.startswith("lossy "):
            continue
        name = rule.removeprefix("lossy ")
        promised = float(name.split(":")[1]) if ":" in name else None
        said = sum(text[setting].get("spent") or 0.0 for text in whole) / sum(text[setting]["tokens"] for text in whole)
        found.append(
            Point(
                name,
                name.split(":")[0] if promised is not None else "published",
                promised,
                *((said, 0.0) if promised is not None else spends[name]),
                gain(series(setting, "rounds"), series(lossless, "rounds"), rng),
                gain(series(setting, "seconds"), series(lossless, "seconds"), rng),
            )
        )
    return found


def draw(results: list[tuple[Pair, list[Point]]], path: Path) -> None:
    plt.rcParams.update({"svg.hashsalt": "lossy", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, rows = plt.subplots(2, len(results), figsize=(4.2 * len(results), 6.4), sharex=True, sharey="row", squeeze=False)
    for column, (pair, found) in enumerate(results):
        for row, (what, pick) in enumerate((("tokens per round", lambda it: it.rounds), ("tokens a second", lambda it: it.speed))):
            axes = rows[row][column]
            for family, colour, mark in (("account", "#0b6e4f", "o-"), ("budget", "#3a86c8", "s-"), ("published", "#b5443a", "x")):
                own = sorted((it for it in found if it.family == family), key=lambda it: it.spent)
                # An estimate may be less than nothing.
                xs = [100 * max(it.spent, 0) for it in own]
                ys, lows, highs = ([100 * (pick(it)[end] - 1) for it in own] for end in range(3))
                axes.vlines(xs, lows, highs, color=colour, alpha=0.3, linewidth=1.5)
                name = "published: so much or more" if family == "published" else f"Forerun, {family}"
                start = [] if family == "published" else [0]
                axes.plot(start + xs, start + ys, mark, color=colour, label=name)
                if family == "published":
                    for number, (it, x, y) in enumerate(zip(own, xs, ys, strict=True)):
                        beside = (5, -9 if number % 2 else 3)
                        axes.annotate(it.name, (x, y), xytext=beside, textcoords="offset points", fontsize=7, color=colour)
            axes.axhline(0, color="#60676e", linewidth=0.8)
            axes.set_ylabel(f"more {what} than lossless, %" if column == 0 else "")
            if row == 0:
                axes.set_title(pair.name, fontsize=9)
            else:
                axes.set_xlabel("tokens that are not the target's own draw, %")
            axes.grid(alpha=0.25)
    rows[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def percent(interval: tuple[float, float, float]) -> str:
    middle, low, high = (100 * (value - 1) for value in interval)
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


def section(pair: Pair, found: list[Point], texts: int) -> str:
    lines = [f"## {pair.name}", "", f"`{pair.target}` with `{pair.draft}`; {texts} outputs of each way.", ""]
    lines += ["| verification | promised | spent | tokens per round | tokens a second |", "|---|--:|--:|--:|--:|"]
    for it in found:
        promised = "none" if it.promised is None else f"{it.promised}"
        name = PUBLISHED.get(it.name, f"`{it.name}`")
        spent = f"{it.spent:.4f}" if it.promised is not None else f"{it.spent:.3f} ± {it.margin:.3f} or more"
        lines.append(f"| {name} | {promised} | {spent} | {percent(it.rounds)} | {percent(it.speed)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    started, results, sections = time.monotonic(), [], []
    for number, pair in enumerate(PAIRS, 1):
        seconds = len(pair.published) * (pair.spend_seconds or 0)
        print(f"{number} of {len(PAIRS)}: {pair.name}: {pair.minutes + seconds / 60:.0f} min", flush=True)
        with tempfile.TemporaryDirectory() as name:
            report = bench(pair, Path(name))
            spends = {rule: spend(pair, rule, Path(name)) for rule in pair.published}
        found = points(report, spends)
        results.append((pair, found))
        sections.append(section(pair, found, len(report["measures"]) // len(report["config"]["settings"])))
        print(sections[-1], flush=True)
    draw(results, HERE / "lossy.svg")
    minutes = (time.monotonic() - started) / 60
    (HERE / "lossy.md").write_text(
        "# What loss buys\n\n"
        f"Made by `just lossy`, in {minutes:.0f} minutes on two cores. Temperature 1, drafts of 4 tokens, every way in turn on the same\n"
        "prompts; gains are over lossless block verification with the same drafts, with 95 % intervals over prompts. *Spent* is the\n"
        "total variation per token: the chance that a token is not the target's own draw. A mode of Forerun says it; for published\n"
        "rules, which have no bound, it is estimated from outputs and rows and may be more; with a draft model of another\n"
        "vocabulary that cannot be done, so they are left out there.\n\n"
        "![Gain against what was changed](lossy.svg)\n\n" + "\n\n".join(sections) + "\n",
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
