"""Black boxes by betting: a test that may be looked at at any time.

A player with a fortune of one bets on each text that the code produces, at the odds of the
target's distribution. If the code is lossless, the fortune is a fair game: it exceeds ``1 / alpha``
with probability at most ``alpha``, ever. If not, the player learns the code's distribution from its
texts and gets rich.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ._model import Model, Prefix, battery


@dataclass(frozen=True)
class SampledReport:
    """What betting found."""

    #: Whether the code was proved wrong.
    caught: bool
    samples: int
    #: Natural logarithm of the largest fortune reached on one model.
    log_wealth: float
    alpha: float
    #: The least total variation that would very likely have been found, on every model.
    smallest_fault: float
    #: The model it was caught on.
    model: Model | None = None
    #: A text that the target never says, if one was produced.
    impossible: Prefix | None = None

    def __str__(self) -> str:
        if not self.caught:
            return (
                f"nothing found in {self.samples} texts: a fault of total variation "
                f"{self.smallest_fault:.3g} or more would have been"
            )
        where = f"on {self.model.name}" if self.model else ""
        if self.impossible is not None:
            return f"not lossless {where}: it said {self.impossible}, which the target never says"
        return (
            f"not lossless {where}: {self.samples} texts, and the odds against it are "
            f"{math.exp(min(self.log_wealth, 700)):.3g} to 1"
        )


class _Player:
    """Bets on the texts of one model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.texts = [text for text in model.outputs() if model.chance_of(text, 0) > 0.0]
        self.target = {text: model.chance_of(text, 0) for text in self.texts}
        self.counts = dict.fromkeys(self.texts, 0)
        self.seen = 0
        self.log_wealth = 0.0
        self.best = 0.0

    def bet(self, text: Prefix) -> None:
        # Krichevsky and Trofimov's estimate: never zero, and as good as the best in hindsight but
        # for half a logarithm of the number of texts for each that is possible.
        odds = (self.counts[text] + 0.5) / (self.seen + 0.5 * len(self.texts))
        self.log_wealth += math.log(odds / self.target[text])
        self.counts[text] += 1
        self.seen += 1
        self.best = max(self.best, self.log_wealth)


def smallest_fault(texts: int, samples: int, log_odds: float) -> float:
    """A distribution at this total variation or more costs the code its case, on average.

    The player earns at least ``2 * variation ** 2`` with each text (Pinsker) and pays what
    learning costs; the last term is for luck, two standard deviations of a fair share of it.
    """
    if samples == 0:
        return 1.0
    learning = 0.5 * (texts - 1) * math.log(samples) + math.log(texts)
    wanted = log_odds + learning
    return min(1.0, math.sqrt((wanted + 2.0 * math.sqrt(wanted)) / (2.0 * samples)))


def sampled(
    run: Callable[[Prefix, Model], Prefix],
    models: Sequence[Model] | None,
    alpha: float,
    samples: int,
    seed: int,
) -> SampledReport:
    """Draws drafts, hands them to ``run``, and bets on the texts that come of it."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha}; expected above 0 and below 1")
    rng = np.random.default_rng(seed)
    chosen = battery(seeds=1, shapes=((3, 1), (2, 2))) if models is None else models
    players = [_Player(model) for model in chosen]
    # Each model is a game of its own; one of them is won by luck as seldom as one alone.
    bar = math.log(len(players) / alpha)
    done = 0
    for done in range(1, samples + 1):
        player = players[(done - 1) % len(players)]
        model = player.model
        path: Prefix = ()
        while len(path) < model.length:
            path = (*path, int(rng.choice(model.vocab_len, p=model.draft[path])))
        text = run(path, model)
        while len(text) <= model.length:
            text = (*text, int(rng.choice(model.vocab_len, p=model.target[text])))
        if text not in player.target:
            return SampledReport(True, done, math.inf, alpha, 0.0, model, text)
        player.bet(text)
        if player.log_wealth >= bar:
            return SampledReport(True, done, player.log_wealth, alpha, 0.0, model)
    worst = max(smallest_fault(len(player.texts), player.seen, bar) for player in players)
    return SampledReport(False, done, max(player.best for player in players), alpha, worst)
