"""Every outcome of a random procedure, with its probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Chance(Protocol):
    """The two kinds of random choice that a rule may make."""

    def coin(self, probability: float) -> bool:
        """True with this probability."""
        ...

    def pick(self, weights: Any) -> int:
        """An index with probability in proportion to its weight."""
        ...


class Replay:
    """Answers the first choices as told, then takes the first outcome and notes the others down."""

    def __init__(self, forced: list[int], pending: list[list[int]]) -> None:
        self._forced = forced
        self._open = pending
        self._at = 0
        self.probability = 1.0

    def coin(self, probability: float) -> bool:
        probability = float(probability)
        if probability != probability:
            raise ValueError("a coin was tossed with a probability that is NaN")
        if probability <= 0.0 or probability >= 1.0:
            return probability >= 1.0
        return self._choose([(1, probability), (0, 1.0 - probability)]) == 1

    def pick(self, weights: Any) -> int:
        choices = [(index, float(weight)) for index, weight in enumerate(weights)]
        bad = next((c for c in choices if not c[1] >= 0.0 or c[1] == float("inf")), None)
        if bad is not None:
            raise ValueError(f"a pick from weights of which number {bad[0]} is {bad[1]}")
        choices = [choice for choice in choices if choice[1] > 0.0]
        if not choices:
            raise ValueError("a pick from weights that are all zero")
        return self._choose(choices)

    def _choose(self, choices: Sequence[tuple[int, float]]) -> int:
        # A choice without alternative is none, and is not recorded.
        if len(choices) == 1:
            return choices[0][0]
        if self._at == len(self._forced):
            self._open.extend(self._forced + [index] for index, _ in choices[1:])
            self._forced = self._forced + [choices[0][0]]
        chosen = self._forced[self._at]
        self._at += 1
        total = sum(weight for _, weight in choices)
        weight = dict(choices).get(chosen)
        if weight is None:
            raise RuntimeError(
                "the same choices led elsewhere the second time: the procedure draws from something "
                "else, or keeps state between calls"
            )
        self.probability *= weight / total
        return chosen


def outcomes(procedure: Callable[[Chance], T]) -> Iterator[tuple[float, T]]:
    """Runs a procedure once for every outcome of its choices: probability and result of each.

    The procedure must choose through the given chance alone.
    """
    pending: list[list[int]] = [[]]
    while pending:
        replay = Replay(pending.pop(), pending)
        result = procedure(replay)
        yield replay.probability, result
