"""Writes CONFORMANCE.md: acceptance implementations, and what the kit found of each.

`just kit torch` runs it; engines' samplers are lines of it if VLLM_WHEEL and SGLANG_WHEEL name wheels that have them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Triton reads it when it is imported, and torch imports Triton.
os.environ["TRITON_INTERPRET"] = "1"

import forerun as fr  # noqa: E402

SMALL = [(2, 1), (3, 1), (2, 2)]


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    what: str
    version: str
    how: str
    verdict: str
    error: str
    command: str


def enumerated(what: str, of: str, report: fr.Report, command: str) -> Line:
    return Line(
        what,
        of,
        f"enumerated: {report.models} model{'s' * (report.models > 1)}, {report.runs} runs",
        "exact" if report.lossless else "**not lossless**",
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
    """The compiled rules behind Python. One draws nothing that could be enumerated: its randomness is its seed."""
    of, lines = version("forerun"), []
    for rule in fr.rules():
        name = f"`forerun.verify`, `{rule}`"
        if rule == "coupled":
            seeds = iter(range(10**9))

            def box(draft: fr.DraftCase, target: fr.TargetCase) -> fr.Verdict:
                options = {"target_probs": target.rows, "rule": "coupled", "seed": next(seeds)}
                return fr.verify(draft.tokens, draft.rows, **options)

            command = 'fr.check.sampled(lambda draft, target: fr.verify(…, rule="coupled", seed=next(seeds)))'
            lines.append(by_bets(name, of, box, command))
            continue
        # A rule for trees is tried on two paths, which are too many for the largest models.
        paths = 1 if rule in ("block", "token") else 2
        models = None if paths == 1 else fr.battery(1, SMALL)
        given = "" if paths == 1 else f", paths={paths}"
        few = "" if paths == 1 else f", fr.battery(1, {SMALL})"
        command = f'fr.check(fr.compiled("{rule}"{given}){few})'
        lines.append(enumerated(name, of, fr.check(fr.compiled(rule, paths), models), command))
    return lines


def by_bets(
    what: str, of: str, box: Callable[[fr.DraftCase, fr.TargetCase], Any], command: str, samples: int = 20_000
) -> Line:
    report = fr.check.sampled(box, samples=samples)
    verdict = "**not lossless**" if report.caught else "nothing found"
    fault = f"< {report.smallest_fault:.2g} (total variation)"
    return Line(what, of, f"bets on {report.samples} texts", verdict, fault, command)


def of_promises() -> list[Line]:
    """The lossy rules, against what they are told to keep."""
    lines = []
    for rule, key, promise, bound in (
        ("lossy-block", "budget", "fr.Budget.at_every_token(0.05)", fr.Budget.at_every_token(0.05)),
        ("lossy-block", "budget", "fr.Budget.on_account(0.05)", fr.Budget.on_account(0.05)),
        ("lossy-near", "near", "fr.Near(1.0, 0.5)", fr.Near(1.0, 0.5)),
    ):
        report = fr.check(fr.compiled(rule, **{key: bound}), within=bound)
        spent = report.spent
        error = f"{spent.worst:.2g} spent" if key == "budget" else f"{spent.gap:.2g} nats, {spent.forgiven:.2g} of tokens"
        lines.append(
            Line(
                f"`forerun.verify`, `{rule}`, `{promise.removeprefix('fr.')}`",
                version("forerun"),
                f"enumerated: {report.models} models, {report.runs} runs",
                "lossy by design; keeps its bound" if report.kept else "**breaks its bound**",
                error,
                f'fr.check(fr.compiled("{rule}", {key}={promise}), within={promise})',
            )
        )
    return lines


def of_torch() -> list[Line]:
    from transformers.generation import utils

    from forerun.torch import block_verify, pooled_verify

    of, hugging = version("forerun"), f"transformers {version('transformers')}"
    sampling = "fr.check.torch(utils._speculative_sampling, fr.adapters.transformers)"
    with fr.patch.transformers(rule="block"):
        patched = fr.check.torch(utils._speculative_sampling, fr.adapters.transformers)
    lossy = partial(fr.adapters.transformers, assistant_ensemble_weight=0.5)
    # Any bound will do: the report says what was spent, on all models.
    ensemble = fr.check.torch(utils._speculative_sampling, lossy, within=1.0)
    return [
        enumerated(
            "`forerun.torch.block_verify`",
            of,
            fr.check.torch(block_verify, fr.adapters.batched),
            "fr.check.torch(block_verify, fr.adapters.batched)",
        ),
        enumerated(
            "`forerun.torch.pooled_verify`, two paths",
            of,
            fr.check.torch(pooled_verify, fr.adapters.batched_paths, fr.battery(1, SMALL), paths=2),
            f"fr.check.torch(pooled_verify, fr.adapters.batched_paths, fr.battery(1, {SMALL}), paths=2)",
        ),
        enumerated(
            "`_speculative_sampling`",
            hugging,
            fr.check.torch(utils._speculative_sampling, fr.adapters.transformers),
            sampling,
        ),
        Line(
            "the same with `assistant_ensemble_weight=0.5`",
            hugging,
            f"enumerated: {ensemble.models} models, {ensemble.runs} runs",
            "lossy by design, without a bound",
            f"{ensemble.spent.worst:.2g} spent",
            "fr.check.torch(…, partial(fr.adapters.transformers, assistant_ensemble_weight=0.5), within=1.0)",
        ),
        enumerated(
            "the same, replaced by `fr.patch.transformers`",
            f"{hugging}, Forerun {of}",
            patched,
            f"with fr.patch.transformers(): {sampling}",
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


def of_sglang() -> list[Line]:
    """The Triton kernel of SGLang for chains, from its wheel, interpreted."""
    wheel = os.environ.get("SGLANG_WHEEL")
    if wheel is None:
        return []
    import torch

    from sglang_sampler import adapt, sampler

    number = Path(wheel).name.split("-")[1]
    function = sampler(wheel)
    torch.manual_seed(1)
    return [
        by_bets(
            f"`chain_speculative_sampling_triton`, `block_verification={block}`, interpreted",
            f"SGLang {number}",
            partial(adapt, partial(function, block_verification=block)),
            "SGLANG_WHEEL=… just kit torch",
            samples=4_000,  # Interpreted, a call takes a hundredth of a second.
        )
        for block in (False, True)
    ]


def main() -> None:
    lines = [of_rust(), *of_wheel(), *of_promises(), *of_torch(), *of_vllm(), *of_sglang()]
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
