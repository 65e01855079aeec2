"""How to call acceptance code that exists, in its own terms. Torch is imported when it is used.

Each takes the function, what was drafted, and the target's rows, and returns the tokens to commit.
Give options by `functools.partial`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._check import DraftCase, TargetCase


def transformers(
    function: Callable[..., Any], draft: DraftCase, target: TargetCase, **options: Any
) -> list[int]:
    """``transformers.generation.utils._speculative_sampling``, and what has its signature."""
    import torch

    tokens = torch.tensor([draft.tokens])
    # Zero becomes minus infinity, which the function's softmax makes zero again.
    logits = [torch.tensor(rows).log().unsqueeze(0) for rows in (draft.rows, target.rows)]
    valid, _ = function(tokens, logits[0], len(draft.tokens), logits[1], **options)
    return [int(token) for token in valid[0].tolist()]


def batched(
    function: Callable[..., Any], draft: DraftCase, target: TargetCase, **options: Any
) -> list[int]:
    """``function(tokens[B, L], draft_probs[B, L, V], target_probs[B, L + 1, V])`` that returns how
    many tokens are accepted of each sequence and the token after them, as `forerun.torch` has it.

    The sequence is the second of a batch, after one that is certain, so that a mix-up of sequences
    shows.
    """
    import torch

    tokens = torch.tensor([draft.tokens])
    rows, target_rows = torch.tensor(draft.rows)[None], torch.tensor(target.rows)[None]
    certain = torch.zeros_like(target_rows)
    certain[..., 0] = 1.0
    accepted, following = function(
        torch.cat([torch.zeros_like(tokens), tokens]),
        torch.cat([certain[:, :-1], rows]),
        torch.cat([certain, target_rows]),
        **options,
    )
    if (int(accepted[0]), int(following[0])) != (len(draft.tokens), 0):
        raise ValueError("a sequence that is certain was not accepted as it is")
    return [*draft.tokens[: int(accepted[1])], int(following[1])]


def batched_paths(
    function: Callable[..., Any], draft: DraftCase, target: TargetCase, **options: Any
) -> list[int]:
    """``function(tokens[B, K, L], draft_probs[B, K, L, V], target_probs[B, K, L + 1, V])`` that
    returns which path is followed, how far, and the token after, as `forerun.torch` has it.

    Give ``paths=K`` to `check.torch`. The sequence is the second of a batch, after one that is
    certain.
    """
    import torch

    length = len(draft.tokens)
    tokens = torch.tensor([draft.paths])
    rows = [[draft.row(path[:n]) for n in range(length)] for path in draft.paths]
    target_rows = [[target.row(path[:n]) for n in range(length + 1)] for path in draft.paths]
    drafted, scored = torch.tensor(np.array([rows])), torch.tensor(np.array([target_rows]))
    certain = torch.zeros_like(scored)
    certain[..., 0] = 1.0
    path, accepted, following = function(
        torch.cat([torch.zeros_like(tokens), tokens]),
        torch.cat([certain[:, :, :-1], drafted]),
        torch.cat([certain, scored]),
        **options,
    )
    if (int(accepted[0]), int(following[0])) != (length, 0):
        raise ValueError("a sequence that is certain was not accepted as it is")
    return [*draft.paths[int(path[1])][: int(accepted[1])], int(following[1])]


def vllm(
    function: Callable[..., Any], draft: DraftCase, target: TargetCase, **options: Any
) -> list[int]:
    """The layout of vLLM's ``rejection_sample``: flat drafted tokens with their cumulative numbers,
    a bonus token that is drawn before, and an output padded with -1.

    ``function(draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs,
    target_probs, bonus_token_ids)``.
    """
    import torch

    count = len(draft.tokens)
    rows = torch.tensor(target.rows)
    bonus = torch.multinomial(rows[-1:], 1)
    out = function(
        torch.tensor(draft.tokens),
        [count],
        count,
        torch.tensor([count]),
        torch.tensor(draft.rows),
        rows[:-1].clone(),
        bonus,
        **options,
    )
    return [int(token) for token in out[0].tolist() if token >= 0]
