"""Block and pooled verification in plain torch, batched: what an engine on a GPU can copy.

Both are proved by `forerun.check.torch` in this package's tests. There is no loop over sequences,
paths or the vocabulary; the one over drafted tokens has as many steps as a draft is long. Shapes
alone decide what runs, so that `torch.compile` takes each as one graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def block_verify(
    tokens: Any,
    draft_probs: Any,
    target_probs: Any,
    lengths: Any = None,
    generator: Any = None,
) -> tuple[Any, Any]:
    """How many drafted tokens are accepted of each sequence, and the token after them.

    ``tokens[B, L]`` were drawn from ``draft_probs[B, L, V]``; ``target_probs[B, L + 1, V]`` has one
    row more. ``lengths[B]`` says how many are drafted, if not all. Probabilities are after
    temperature and truncation. Block verification (arXiv 2403.10444): no lossless rule accepts
    more of one path.
    """
    passing, residual = block_chances(tokens, draft_probs, target_probs, lengths)
    uniform = torch.rand(
        passing.shape, dtype=passing.dtype, device=passing.device, generator=generator
    )
    accepted, left = block_decide(uniform, passing, residual, target_probs)
    return accepted, torch.multinomial(left, 1, generator=generator).squeeze(1)


def block_chances(
    tokens: Any, draft_probs: Any, target_probs: Any, lengths: Any = None
) -> tuple[Any, Any]:
    """The chance ``[B, L + 1]`` that each prefix passes its test, and its residual
    ``[B, L + 1, V]``: block verification before anything is drawn."""
    batch, room = tokens.shape
    device = target_probs.device
    steps = torch.arange(room + 1, device=device)
    if lengths is None:
        lengths = torch.full((batch,), room, device=device)
    drafted = steps[None, :room] < lengths[:, None]
    # Beyond the draft nothing was drawn, so nothing is taken from the target.
    nothing = torch.zeros_like(target_probs[:, :1])
    draft = torch.cat([draft_probs * drafted[..., None], nothing], dim=1)
    index = torch.where(drafted, tokens, 0)[..., None]
    ratio = target_probs[:, :room].gather(2, index) / draft_probs.gather(2, index)
    ratio = torch.where(drafted, ratio.squeeze(2), 0.0)
    # The weight of each prefix: its ratio of target to draft, clipped at one after each token.
    weights = [torch.ones_like(target_probs[:, 0, 0])]
    for step in range(room):
        weights.append((weights[-1] * ratio[:, step]).clamp(max=1.0))
    weight = torch.stack(weights, dim=1)
    residual = (weight[..., None] * target_probs - draft).clamp(min=0.0)
    mass = residual.sum(dim=2)
    # Each prefix passes a test of its own and the longest that does is kept; after the last drafted
    # token the residual is the target's row, and this is its weight.
    passing = mass / (mass + (1.0 - weight))
    passing = torch.where(mass > 0.0, passing, torch.zeros_like(passing))
    passing = torch.where(steps[None, :] <= lengths[:, None], passing, torch.zeros_like(passing))
    return passing, residual


def block_decide(
    uniform: Any, passing: Any, residual: Any, target_probs: Any
) -> tuple[Any, Any]:
    """How many tokens are accepted by these uniform numbers, and what the next one is drawn from."""
    steps = torch.arange(passing.shape[1], device=passing.device)
    # The longest prefix that passes; the empty one always does.
    accepted = ((uniform < passing) * steps[None, :]).amax(dim=1)
    row = accepted[:, None, None].expand(-1, 1, target_probs.shape[2])
    left = residual.gather(1, row).squeeze(1)
    whole = target_probs.gather(1, row).squeeze(1)
    # Only rounding can leave nothing where something must follow.
    return accepted, torch.where(left.sum(dim=1, keepdim=True) > 0.0, left, whole)


def pooled_verify(
    tokens: Any,
    draft_probs: Any,
    target_probs: Any,
    lengths: Any = None,
    generator: Any = None,
    steps: int = 8,
) -> tuple[Any, Any, Any]:
    """Of several paths a sequence: which one is followed, how far, and the token after that.

    ``tokens[B, K, L]`` are K paths that one drafter drew independently, duplicates included: token
    ``[b, k, n]`` from ``draft_probs[B, K, L, V]``. ``target_probs[B, K, L + 1, V]`` has one row more.
    Paths that begin alike have the same rows as far as they do. ``lengths[B]`` says how many tokens
    of each path are drafted, if not all. Returns ``path[B]``, ``accepted[B]`` and ``next[B]``.

    Pooled block verification with one class of tokens (`docs/verification.md`, section 6). It is
    lossless whatever ``steps`` is: the bars only decide how much is accepted, and each step of
    their search reads all rows once.
    """
    batch, paths, room, vocab = draft_probs.shape
    if paths > PATHS_MAX:
        raise ValueError(f"{paths} paths; expected at most {PATHS_MAX}")
    if lengths is None:
        lengths = torch.full((batch,), room, device=tokens.device)
    nodes, shares = _ARRIVALS[(paths + 1) // 2 - 1]
    at = torch.tensor(nodes, dtype=target_probs.dtype, device=target_probs.device)
    share = torch.tensor(shares, dtype=target_probs.dtype, device=target_probs.device)
    # Whether two paths are at the same node, and whether a path stands for its node.
    same = torch.ones(batch, paths, paths, dtype=torch.bool, device=tokens.device)
    weight = torch.ones_like(target_probs[:, :, 0, 0])
    residuals, leaving = [], []
    for depth in range(room + 1):
        first = ~torch.tril(same, diagonal=-1).any(dim=2)
        target = target_probs[:, :, depth]
        demand = weight[..., None] * target
        left, given = demand, torch.zeros_like(weight)
        if depth < room:
            drafted = (depth < lengths)[:, None]
            draft = draft_probs[:, :, depth] * drafted[..., None]
            alike = same.sum(dim=2)
            demand = demand / alike[..., None]
            # The bar is to be the chance that nobody came before; from below, it never overshoots.
            bar = torch.full_like(weight, 1.0 / paths)
            for _ in range(steps):
                taken = torch.minimum(draft, demand / bar[..., None])
                bar = _first_chance(taken.sum(dim=2), at, share)
            taken = torch.minimum(draft, demand / bar[..., None])
            chance = _first_chance(taken.sum(dim=2), at, share)
            grant = torch.minimum(bar, chance)
            left = left - (alike * grant)[..., None] * taken
            # What the drawn tokens get, now that they are known.
            drawn = torch.where(drafted, tokens[:, :, depth], 0)[..., None]
            passes = (taken.gather(2, drawn) / draft.gather(2, drawn)).squeeze(2)
            passes = torch.where(drafted, passes, torch.zeros_like(passes))
            given = grant / chance * passes * _first_chance(passes, at, share)
        residual = left.clamp(min=0.0) * first[..., None]
        mass = residual.sum(dim=(1, 2))
        reach = (weight * first).sum(dim=1).clamp(max=1.0)
        leaves = mass / (mass + (1.0 - reach))
        leaving.append(torch.where(mass > 0.0, leaves, torch.zeros_like(leaves)))
        residuals.append(residual)
        if depth < room:
            same = same & (tokens[:, :, None, depth] == tokens[:, None, :, depth])
            weight = (same * given[:, None, :]).sum(dim=2)
    passing = torch.stack(leaving, dim=1)
    uniform = torch.rand(
        passing.shape, dtype=passing.dtype, device=passing.device, generator=generator
    )
    # From the deepest layer up, the first that is left; the root is left for certain.
    depths = torch.arange(room + 1, device=tokens.device)
    accepted = ((uniform < passing) * depths).amax(dim=1)
    flat = torch.stack(residuals, dim=1).flatten(2)
    left = flat.gather(1, accepted[:, None, None].expand(-1, 1, paths * vocab)).squeeze(1)
    # Only rounding can leave nothing where something must follow.
    whole = torch.cat([target_probs[:, 0, 0], torch.zeros_like(left[:, vocab:])], dim=1)
    left = torch.where(left.sum(dim=1, keepdim=True) > 0.0, left, whole)
    chosen = torch.multinomial(left, 1, generator=generator).squeeze(1)
    return chosen // vocab, accepted, chosen % vocab


def _first_chance(passes: Any, at: Any, share: Any) -> Any:
    """For each of the candidates ``[B, K]``, the chance that none of the others passed before it,
    if all arrive at uniform times: the integral of a product, which the nodes give exactly."""
    missed = 1.0 - passes[:, None, None, :] * at[None, :, None, None]
    own = torch.eye(passes.shape[1], dtype=torch.bool, device=passes.device)
    others = torch.where(own, torch.ones_like(missed), missed)
    return (others.prod(dim=3) * share[None, :, None]).sum(dim=1)


def _arrivals(degree: int) -> tuple[list[float], list[float]]:
    """Gauss and Legendre's nodes and weights on [0, 1]."""
    at, share = np.polynomial.legendre.leggauss(degree)
    return (0.5 * (at + 1.0)).tolist(), (0.5 * share).tolist()


PATHS_MAX = 64
#: By half the number of paths; made here, as `torch.compile` traces no such function of NumPy.
_ARRIVALS = [_arrivals(degree) for degree in range(1, PATHS_MAX // 2 + 1)]
