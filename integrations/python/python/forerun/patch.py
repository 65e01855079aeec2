"""Forerun's rules in programs that have no hook for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _block_sampling(
    candidate_input_ids: Any,
    candidate_logits: Any,
    candidate_length: int,
    new_logits: Any,
    assistant_ensemble_weight: float | None = None,
) -> tuple[Any, Any]:
    """Block verification with the signature of transformers' ``_speculative_sampling``."""
    import torch

    from .torch import block_verify

    if assistant_ensemble_weight is not None:
        raise ValueError(
            "assistant_ensemble_weight changes the output, and block verification does not; leave one out"
        )
    tokens = candidate_input_ids[:, -candidate_length:]
    accepted, following = block_verify(
        tokens, candidate_logits.softmax(dim=-1), new_logits.softmax(dim=-1)
    )
    valid = torch.cat([tokens[:, : int(accepted[0])], following[:, None]], dim=-1)
    return valid, accepted[0]


@contextmanager
def transformers(rule: str = "block") -> Iterator[None]:
    """While it is entered, ``generate`` with an ``assistant_model`` and ``do_sample=True`` accepts
    by block verification: more tokens of each draft, the same distribution."""
    if rule != "block":
        raise ValueError(f"rule {rule!r}; transformers drafts one path, for which block is the best")
    from transformers.generation import utils

    before = utils._speculative_sampling
    utils._speculative_sampling = _block_sampling
    try:
        yield
    finally:
        utils._speculative_sampling = before
