"""Block verification in SGLang: a plug-in of ``sglang.srt.plugins``.

It does nothing unless ``FORERUN_SGLANG=block`` is set. Then the sampler of chains
(``--speculative-use-rejection-sampling``) is `forerun.torch.block_verify` in plain torch, by the
random numbers that SGLang passes. SGLang has a kernel for block verification of its own, which is
faster; this one is proved, and is there to compare with.
"""

from __future__ import annotations

import os
from typing import Any

TARGET = "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton"


def register() -> None:
    """The entry point: SGLang applies the hook when all plug-ins are loaded."""
    rule = os.environ.get("FORERUN_SGLANG", "")
    if not rule:
        return
    if rule != "block":
        raise ValueError(f"FORERUN_SGLANG={rule}; expected block, or nothing")
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, block_chain_sampling, HookType.REPLACE)


def block_chain_sampling(
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    uniform_samples: Any,
    uniform_samples_for_final_sampling: Any,
    target_probs: Any,
    draft_probs: Any,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    **_: Any,
) -> None:
    """SGLang's ``chain_speculative_sampling_triton``: candidate 0 is the last committed token, the
    others are the draft. Writes the tokens after each accepted one, their places, and their number.
    """
    import torch

    from .torch import block_chances, block_decide

    tokens = candidates[:, 1:].to(torch.int64)
    passing, residual = block_chances(tokens, draft_probs[:, : tokens.shape[1]], target_probs)
    # The test of the empty prefix is passed by any number.
    uniform = torch.cat([torch.zeros_like(passing[:, :1]), uniform_samples[:, :-1]], dim=1)
    accepted, left = block_decide(uniform, passing, residual, target_probs)
    # The first token whose running sum exceeds the point, as SGLang draws it.
    sums = left.cumsum(dim=1)
    point = uniform_samples_for_final_sampling[:, None] * sums[:, -1:]
    following = (sums <= point).sum(dim=1).clamp(max=left.shape[1] - 1)
    steps = torch.arange(candidates.shape[1], device=candidates.device)
    reached = steps[None, :] <= accepted[:, None]
    said = torch.cat([tokens, tokens[:, :1]], dim=1).scatter(1, accepted[:, None], following[:, None])
    predicts[retrive_index[reached].to(torch.int64)] = said[reached].to(predicts.dtype)
    accept_index[reached] = retrive_index[reached].to(accept_index.dtype)
    accept_token_num.copy_(accepted)
