"""Writes CONFORMANCE.md: acceptance implementations, and what the kit found of each.

`just kit torch` runs it; vLLM's sampler is a line of it if VLLM_WHEEL names a wheel that has one.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import forerun as fr

@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    version: str
    how: str
    verdict: str
    error: str
    command: str


def enumerated(what: str, of: str, report: fr.Report, command: str, by_design: bool = False) -> Line:
    lossy = "lossy by design" if by_design else "**not lossless**"
    return Line(
        what,
        of,
        f"enumerated: {report.models} model{'s' * (report.models > 1)}, {report.runs} runs",
        "exact" if report.lossless else lossy,
        f"{report.worst_error:.1e}",
        command,
    )


def of_rust() -> Line:
    """The rules in Rust are enumerated in Rust, by tests that fail above this error."""
    return Line(
        "all lossless rules of `forerun-verify`",
        version("forerun"),
        "enumerated: at least 200 models for each rule and way of drafting",
        "exact",
        "< 1e-12",
        "just prove",
    )


def of_wheel() -> list[Line]:
    """The wheel as a black box, by its seeds."""
    lines = []
    for rule in ("block", "token", "nss"):
        seeds = iter(range(10**9))

        def box(draft: fr.DraftCase, target: fr.TargetCase, rule: str = rule) -> list[int]:
            options = {"target_probs": target.rows, "rule": rule, "seed": next(seeds)}
            return fr.verify(draft.tokens, draft.rows, **options).tokens

        report = fr.check.sampled(box, samples=10_000)
        verdict = "**not lossless**" if report.caught else "nothing found"
        fault = f"< {report.smallest_fault:.2g} (total variation)"
        lines.append(
            Line(
                f"`forerun.verify`, `{rule}`, as a black box",
                version("forerun"),
                f"bets on {report.samples} texts",
                verdict,
                fault,
                "fr.check.sampled(…)",
            )
        )
    return lines


def of_torch() -> list[Line]:
    from transformers.generation import utils

    from forerun.torch import block_verify

    of, hugging = version("forerun"), f"transformers {version('transformers')}"
    torch_line = "fr.check.torch(block_verify, adapt=fr.adapters.batched)"
    sampling = "fr.check.torch(utils._speculative_sampling, adapt=fr.adapters.transformers)"
    lossy = partial(fr.adapters.transformers, assistant_ensemble_weight=0.5)
    lines = [
        enumerated(
            "`forerun.torch.block_verify`", of, fr.check.torch(block_verify, fr.adapters.batched), torch_line
        ),
        enumerated(
            "`_speculative_sampling`",
            hugging,
            fr.check.torch(utils._speculative_sampling, fr.adapters.transformers),
            sampling,
        ),
        enumerated(
            "the same with `assistant_ensemble_weight=0.5`",
            hugging,
            fr.check.torch(utils._speculative_sampling, lossy),
            "fr.check.torch(…, adapt=partial(fr.adapters.transformers, assistant_ensemble_weight=0.5))",
            by_design=True,
        ),
    ]
    with fr.patch.transformers(rule="block"):
        report = fr.check.torch(utils._speculative_sampling, fr.adapters.transformers)
    return [
        *lines,
        enumerated(
            "the same, replaced by `fr.patch.transformers`", f"{hugging}, Forerun {of}", report, sampling
        ),
    ]


def of_vllm() -> list[Line]:
    """The torch sampler of vLLM's first engine, from its wheel, without the rest of vLLM."""
    wheel = os.environ.get("VLLM_WHEEL")
    if wheel is None:
        return []
    from vllm_sampler import adapt, sampler

    number = Path(wheel).name.split("-")[1]
    report = fr.check.torch(sampler(wheel), adapt)
    return [
        enumerated(
            "`RejectionSampler` in torch (of its first engine)",
            f"vLLM {number}",
            report,
            "VLLM_WHEEL=… just kit torch",
        )
    ]


def main() -> None:
    lines = [of_rust(), *of_wheel(), *of_torch(), *of_vllm()]
    lines.append(
        Line(
            "llama.cpp's server with a draft model",
            "as certified on 2026-11-15",
            "[752 pairs of outputs](bench/certify/llama-server.html), false-alarm rate 0.001",
            "nothing found",
            "< 0.11 (share of outputs)",
            "just certify-llama-server",
        )
    )
    table = [
        f"| {line.what} | {line.version} | {line.how} | {line.verdict} | {line.error} | `{line.command}` |"
        for line in lines
    ]
    text = (Path(__file__).parent / "conformance.md").read_text()
    Path(sys.argv[1]).write_text(text.replace("TABLE\n", "\n".join(table) + "\n"))


if __name__ == "__main__":
    main()
