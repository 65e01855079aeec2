"""What lossy rules promise, what they say they spent, and what enumeration finds that they did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ._model import Model, Prefix, Vector
from ._native import Budget, Near

#: What code may promise of its output: to be lossless (``None``); that each token's distribution is
#: within a total variation of the target's; all bounds of a `Budget`; or, of greedy output, `Near`.
Promise = float | Budget | Near | None

#: Prefixes reached less often than this say nothing: their rows are rounding.
_REACHED = 1e-12

#: Logits in single precision that differ by less than this many nats may be the same.
_TIED = 1e-6


@dataclass(frozen=True)
class Spend:
    """What one committed token spent."""

    #: The total variation between the distribution it was drawn from and the target's; of
    #: ``lossy-near``, 1 for a token that is not the target's best and 0 for others.
    distance: float
    #: Most by which a token's probability was multiplied there; of ``lossy-near``, how many times
    #: likelier than this token the best one is.
    factor: float
    #: What the account holds for the token after it.
    balance: float


@dataclass(frozen=True)
class Spent:
    """What a verdict spent: an entry for each accepted token and one for the next.

    Whoever commits fewer of the tokens counts their entries alone, and hands the balance of the last
    one to the next verdict.
    """

    tokens: tuple[Spend, ...]

    @property
    def sum(self) -> float:
        """What all tokens spent together: how many are expected not to be the target's own."""
        return sum(spend.distance for spend in self.tokens)

    @property
    def most(self) -> float:
        """The most that one token spent."""
        return max(spend.distance for spend in self.tokens)

    @property
    def factor_most(self) -> float:
        """The most by which a probability was multiplied."""
        return max(spend.factor for spend in self.tokens)

    @property
    def balance(self) -> float:
        """What the account holds after all tokens: ``balance`` of the text's next verdict."""
        return self.tokens[-1].balance


def bound(rule: str, budget: float | Budget | None, near: Near | None) -> Budget | None:
    """The budget to judge by. Fails if the bound that was given is not the rule's."""
    wanted = {"lossy-block": "budget", "lossy-near": "near"}.get(rule)
    for name, given in (("budget", budget), ("near", near)):
        if given is not None and name != wanted:
            raise ValueError(f"{name} is given, but {rule} does not take it; leave it out, or name the rule")
        if given is None and name == wanted:
            example = "budget=0.02" if name == "budget" else "near=forerun.Near(gap=1.0, share=0.02)"
            raise ValueError(f"{rule} changes the output; say by how much: {example}, for example")
    return Budget.at_every_token(budget) if isinstance(budget, (int, float)) else budget


@dataclass(frozen=True)
class Spending:
    """What code spends on a model, by enumeration.

    Given that the accepted tokens reach a prefix, the token after it has some distribution, which is
    the target's row if the code is lossless.
    """

    #: The largest total variation between such a distribution and the target's row.
    worst: float = 0.0
    #: The most by which one of them multiplies a probability of the target.
    factor: float = 1.0
    #: The most probability that one of them gives to tokens that the target never says.
    outside: float = 0.0
    #: The largest difference between what verdicts say that a token spent and what it did.
    books: float = 0.0
    #: The most nats that a committed token is below the target's best.
    gap: float = 0.0
    #: The largest share, of the tokens of a text so far, that are not the target's best.
    forgiven: float = 0.0
    #: The distribution after each prefix.
    rows: Mapping[Prefix, Vector] = field(default_factory=dict, repr=False)
    #: The total variation after each prefix.
    spends: Mapping[Prefix, float] = field(default_factory=dict, repr=False)

    def worse(self, other: Spending) -> Spending:
        """The larger of each number; of which rows is not known any more."""
        numbers = ("worst", "factor", "outside", "books", "gap", "forgiven")
        return Spending(**{name: max(getattr(self, name), getattr(other, name)) for name in numbers})

    def overdrawn(self, per_token: float) -> float:
        """The most by which spends along a text exceed what its tokens earned so far."""
        return max(
            sum(self.spends.get(prefix[:n], 0.0) for n in range(len(prefix) + 1))
            - per_token * (len(prefix) + 1)
            for prefix in self.spends
        )


def spending(model: Model, commits: Mapping[Prefix, float], said: Mapping[Prefix, float]) -> Spending:
    """What was spent, from the probability of each commit and what verdicts say of each prefix."""
    reached: dict[Prefix, Vector] = {}
    gap = forgiven = 0.0
    for committed, probability in commits.items():
        passed = 0
        for n, token in enumerate(committed):
            row = reached.setdefault(committed[:n], np.zeros(model.vocab_len))
            row[token] += probability
            below = _gap(model.target[committed[:n]], token)
            passed += below > _TIED
            gap, forgiven = max(gap, below), max(forgiven, passed / (n + 1))
    worst = outside = books = 0.0
    factor = 1.0
    rows, spends = {}, {}
    for prefix, row in reached.items():
        if row.sum() <= _REACHED:
            continue
        target, rows[prefix] = model.target[prefix], row / row.sum()
        spends[prefix] = float((rows[prefix] - target).clip(min=0.0).sum())
        worst = max(worst, spends[prefix])
        outside = max(outside, float(rows[prefix][target == 0.0].sum()))
        likely = target > _REACHED
        factor = max(factor, float((rows[prefix][likely] / target[likely]).max()))
        if prefix in said:
            books = max(books, abs(said[prefix] - spends[prefix]))
    return Spending(worst, factor, outside, books, gap, forgiven, rows, spends)


def _gap(row: Vector, token: int) -> float:
    if row[token] == 0.0:
        return math.inf
    return math.log(float(row.max() / row[token]))


def exceeded(promise: Promise, off: float, found: Spending) -> tuple[float, str]:
    """By how much a promise is broken at most, and how. ``off`` is the error of texts."""
    if promise is None:
        return off, f"texts are off by up to {off:.3g}"
    if isinstance(promise, Near):
        return max(
            (found.gap - promise.gap - _TIED, f"a token is {found.gap:.3g} nats below the best"),
            (
                found.forgiven - promise.share,
                f"up to {found.forgiven:.3g} of a text's tokens are not the best",
            ),
        )
    step = promise.step if isinstance(promise, Budget) else promise
    broken = [
        (found.worst - step, f"a token is off by a total variation of {found.worst:.3g}"),
        (found.books, f"what a token spent is misstated by {found.books:.3g}"),
    ]
    if isinstance(promise, Budget):
        over = found.overdrawn(promise.per_token)
        broken += [
            (found.factor / promise.factor - 1.0, f"a token is {found.factor:.3g} times as likely"),
            (found.outside, f"a token that the target never says has probability {found.outside:.3g}"),
            (over, f"the account of a text is overdrawn by {over:.3g}"),
        ]
    return max(broken)


def kept(promise: Promise, found: Spending) -> str:
    """What was spent of a promise that was kept, in words."""
    if isinstance(promise, Near):
        return (
            f"tokens are at most {found.gap:.3g} nats below the best, and at most {found.forgiven:.3g} of "
            "a text's are not the best"
        )
    spent = f"a token spends at most {found.worst:.3g}"
    if isinstance(promise, Budget):
        return f"{spent} and is at most {found.factor:.3g} times as likely"
    return spent
