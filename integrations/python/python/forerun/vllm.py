"""Block verification in vLLM: a plug-in of ``vllm.general_plugins``.

vLLM loads the plug-ins of everything that is installed, in every process. This one does nothing
unless ``FORERUN_VLLM=block`` is set. Then the sampler of vLLM's engine (``vllm.v1.sample``)
accepts by `forerun.torch.block_verify`: more tokens of each draft, the same distribution. Greedy
requests stay vLLM's own. The newer GPU runner has a sampler with block verification of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

#: What this was written against; a vLLM with another signature is left alone, with an error.
PARAMETERS = (
    "draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs",
    "target_logits", "bonus_token_ids", "sampling_metadata",
)  # fmt: skip


def register() -> None:
    """The entry point. May be called any number of times."""
    rule = os.environ.get("FORERUN_VLLM", "")
    if not rule:
        return
    if rule != "block":
        raise ValueError(f"FORERUN_VLLM={rule}; expected block, or nothing")
    from vllm.v1.sample import rejection_sampler as module

    if getattr(module.rejection_sample, "forerun_rule", None) is None:
        module.rejection_sample = replaced(module.rejection_sample)


def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM's ``rejection_sample`` with block verification for requests that are sampled."""
    known = tuple(signature(original).parameters)[: len(PARAMETERS)]
    if known != PARAMETERS:
        raise RuntimeError(
            f"this vLLM's rejection_sample takes {', '.join(known)}; forerun knows another one. "
            "Unset FORERUN_VLLM"
        )

    @wraps(original)
    def rejection_sample(*args: Any, **options: Any) -> Any:
        given = signature(original).bind(*args, **options).arguments
        # Synthetic acceptance is for benchmarks of other things; greedy requests gain nothing.
        if given.get("synthetic_mode") or given["sampling_metadata"].all_greedy:
            return original(*args, **options)
        return block_rejection_sample(*(given[name] for name in PARAMETERS))

    setattr(rejection_sample, "forerun_rule", "block")
    return rejection_sample


def block_rejection_sample(
    draft_token_ids: Any,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Any,
    draft_probs: Any,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
) -> Any:
    """Block verification in vLLM's layout: flat tokens and rows, output padded with -1.

    The bonus token was drawn from the last row already, so that row is put as certain of it.
    """
    import torch

    from .torch import block_verify

    batch, device = len(num_draft_tokens), target_logits.device
    lengths = torch.tensor(num_draft_tokens, device=device)
    places = torch.arange(max_spec_len, device=device)
    drafted = places[None, :] < lengths[:, None]
    precision = torch.promote_types(target_logits.dtype, torch.float32)
    target_flat = target_logits.softmax(dim=-1, dtype=precision)
    if not sampling_metadata.all_random:
        target_flat = _with_greedy_rows(target_flat, lengths, sampling_metadata.temperature)
    tokens = torch.zeros(batch, max_spec_len, dtype=torch.int64, device=device)
    tokens[drafted] = draft_token_ids.to(torch.int64)
    target = target_flat.new_zeros(batch, max_spec_len + 1, target_flat.shape[1])
    target[:, :max_spec_len][drafted] = target_flat
    target[torch.arange(batch, device=device), lengths, bonus_token_ids[:, 0].to(torch.int64)] = 1.0
    draft = target_flat.new_zeros(batch, max_spec_len, target_flat.shape[1])
    if draft_probs is None:
        draft.scatter_(2, tokens[..., None], 1.0)
    else:
        draft[drafted] = draft_probs.to(draft.dtype)
    out = torch.full((batch, max_spec_len + 1), -1, dtype=torch.int32, device=device)
    # A request with a seed has a generator of its own; the others share torch's.
    seeded = sampling_metadata.generators
    rest = [place for place in range(batch) if place not in seeded]
    for some, generator in [(rest, None), *(([place], seeded[place]) for place in seeded)]:
        if not some:
            continue
        accepted, following = block_verify(
            tokens[some], draft[some], target[some], lengths[some], generator
        )
        keep = places[None, :] < accepted[:, None]
        said = torch.where(keep, tokens[some], -1).to(torch.int32)
        said = torch.cat([said, said.new_full((len(some), 1), -1)], dim=1)
        out[some] = said.scatter(1, accepted[:, None], following[:, None].to(torch.int32))
    return out


def _with_greedy_rows(target: Any, lengths: Any, temperature: Any) -> Any:
    """Rows of greedy requests, certain of their most likely token."""
    import torch

    greedy = (temperature == 0).repeat_interleave(lengths)
    certain = torch.zeros_like(target).scatter(1, target.argmax(dim=1, keepdim=True), 1.0)
    return torch.where(greedy[:, None], certain, target)
