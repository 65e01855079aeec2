"""The report of steer.py: bench/decode/steering.md."""

import platform
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

OUT = Path(__file__).resolve().parent.parent / "bench" / "decode" / "steering.md"
RESAMPLES = 2000


@dataclass
class Judged:
    """By held-out text, sums over its rounds. Columns of `overlap` and `agreement` are depths."""

    rounds: Tensor
    tokens: Tensor
    overlap: Tensor
    agreement: Tensor

    def mean(self, sums: Tensor, drawn: Tensor) -> Tensor:
        """Per round, with every text counted as often as it was drawn."""
        return (drawn @ sums) / (drawn @ self.rounds if sums.ndim == 1 else (drawn @ self.rounds)[:, None])


@dataclass(frozen=True)
class Variant:
    name: str
    about: str
    judged: Judged
    seconds: float
    """Processor time of training."""


# Which gain over which; the last of the pair is the reference.
COMPARED = (
    ("constant, least squares", "pruned"),
    ("steered, least squares", "pruned"),
    ("steered, least squares", "constant, least squares"),
    ("constant, trained", "pruned"),
    ("steered, trained", "pruned"),
    ("steered, trained", "constant, trained"),
    ("distilled", "pruned"),
    ("steered and distilled", "distilled"),
)


def report(variants: list[Variant], about: list[str]) -> None:
    """Writes the report; intervals are of 95 %, by resampling held-out texts, the same ones for all that is compared."""
    texts = len(variants[0].judged.rounds)
    chance = torch.Generator().manual_seed(4)
    picks = torch.randint(texts, (RESAMPLES, texts), generator=chance)
    # The first line is all texts as they are: the figure itself.
    drawn = torch.cat([torch.ones(1, texts), torch.stack([torch.bincount(pick, minlength=texts) for pick in picks]).float()])
    by_name = {variant.name: variant for variant in variants}

    def tokens(name: str) -> Tensor:
        judged = by_name[name].judged
        return judged.mean(judged.tokens, drawn)

    def overlap(name: str) -> Tensor:
        judged = by_name[name].judged
        return judged.mean(judged.overlap, drawn)

    rows = [
        f"| {it.name} | {depths(overlap(it.name), plain)} | {depths(it.judged.mean(it.judged.agreement, drawn), plain)} "
        f"| {interval(tokens(it.name))} | {it.seconds:.0f} |"
        for it in variants
    ]
    gains = [
        f"| {one} | {other} | {depths(overlap(one) - overlap(other), signed)} | {interval(tokens(one) / tokens(other))} |"
        for one, other in COMPARED
        if one in by_name and other in by_name
    ]
    legend = "\n".join(f"* *{it.name}*: {it.about}" for it in variants)
    explained = """Overlap is the sum over tokens of the smaller of the two probabilities; agreement is how often both rows
        have the same most likely token. Both are given by depth: the first to the fourth token of a draft. Tokens per round
        are those of block verification with drafts of 4 at temperature 1, the token after the accepted ones included.
        Training is processor time of one thread."""
    paragraphs = "\n\n".join(map(wrapped, about))
    OUT.write_text(f"""# Steering: a draft model that sees the target's hidden state

{paragraphs}

{legend}

## Overlap, greedy agreement and tokens per round

{wrapped(explained)}

| draft model | overlap 1 / 2 / 3 / 4 | agreement 1 / 2 / 3 / 4 | tokens per round | training, s |
|---|---|---|--:|--:|
{chr(10).join(rows)}

## What is gained over what

Change of overlap by depth, and ratio of tokens per round, each with its 95 % interval over held-out texts.

| draft model | against | overlap 1 / 2 / 3 / 4 | tokens per round |
|---|---|---|--:|
{chr(10).join(gains)}
""")


def wrapped(paragraph: str) -> str:
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)


def plain(values: Tensor) -> str:
    return f"{values[0]:.3f}"


def signed(values: Tensor) -> str:
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return f"{values[0]:+.3f} ({low:+.3f} to {high:+.3f})"


def interval(values: Tensor) -> str:
    low, high = values[1:].quantile(torch.tensor([0.025, 0.975])).tolist()
    return f"{values[0]:.3f} ({low:.3f}–{high:.3f})"


def depths(values: Tensor, shown: Callable[[Tensor], str]) -> str:
    return " / ".join(shown(values[:, depth]) for depth in range(values.shape[1]))


def processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
