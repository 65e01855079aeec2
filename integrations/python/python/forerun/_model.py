"""Small models: a table of rows, another one after every prefix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native

Vector = np.ndarray[Any, np.dtype[np.float64]]
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A target and a drafter: each has a row of probabilities after every prefix of at most
    ``length`` tokens."""

    vocab_len: int
    length: int
    target: dict[Prefix, Vector]
    draft: dict[Prefix, Vector]
    name: str = ""

    @staticmethod
    def random(kind: str, vocab_len: int, length: int, seed: int) -> Model:
        """One of the models that Forerun's own rules are proved on. Its rows lose nothing in single
        precision, so that code which stores them so can be exact."""
        rows = _native.random_rows(kind, (vocab_len, length), seed)
        target = {tuple(prefix): single(row) for prefix, row, _ in rows}
        draft = {tuple(prefix): single(row) for prefix, _, row in rows}
        return Model(vocab_len, length, target, draft, f"{kind}, seed {seed}")

    def chance_of(self, tokens: Prefix, start: int) -> float:
        """The target's probability of ``tokens[start:]`` after ``tokens[:start]``."""
        probability = 1.0
        for place in range(start, len(tokens)):
            probability *= float(self.target[tokens[:place]][tokens[place]])
        return probability

    def outputs(self) -> Iterator[Prefix]:
        """Every text that is one token longer than a draft."""
        return itertools.product(range(self.vocab_len), repeat=self.length + 1)

    def drafts(self) -> Iterator[tuple[float, Prefix]]:
        """Every path that the drafter may draw, with its probability."""
        for path in itertools.product(range(self.vocab_len), repeat=self.length):
            probability = 1.0
            for place in range(self.length):
                probability *= float(self.draft[path[:place]][path[place]])
            if probability > 0.0:
                yield probability, path


def normal(row: Any) -> Vector:
    """A row that adds up to one."""
    weights = np.asarray(row, dtype=np.float64)
    mass = float(weights.sum())
    return np.asarray(weights / mass, dtype=np.float64)


def single(row: Sequence[float]) -> Vector:
    """A row near this one that stays the same if it is rounded to single precision and normalised."""
    weights, attempts = normal(row).astype(np.float32), 0
    while True:
        held = normal(weights)
        again = held.astype(np.float32)
        if (again == weights).all():
            return held
        weights, attempts = again, attempts + 1
        # Rounding may go in circles; another last digit leads out of them.
        if attempts % 3 == 0:
            weights[weights.argmax()] = np.nextafter(weights.max(), np.float32(2.0))


#: Small ones first, so that the first counterexample is a small one.
SHAPES = ((2, 1), (3, 1), (2, 2), (3, 2))


def battery(seeds: int = 2, shapes: Sequence[tuple[int, int]] = SHAPES) -> list[Model]:
    """Models of every kind: unrelated and nearly equal rows, certain ones, tokens without
    probability, ties. One unlucky model hides a wrong residual; these together do not."""
    return [
        Model.random(kind, vocab_len, length, seed)
        for vocab_len, length in shapes
        for kind in _native.kinds()
        for seed in range(seeds)
    ]


def optimum(model: Model, scheme: str = "path") -> float:
    """The most tokens that any lossless rule can accept of one path on average, whatever it knows: how
    much a rule could still gain.

    It is the sum of the flow ``W(ux) = min(draft(ux), W(u) target(x|u))``, which block verification
    reaches. Of several paths the optimum has no such form: it is a linear program, which Forerun's own
    tests solve (``bench/verify/optimum.md``) and this module does not.
    """
    if scheme != "path":
        raise ValueError(f"optimum of scheme {scheme!r}; only that of one path has a closed form")
    total = 0.0
    flows: dict[Prefix, tuple[float, float]] = {(): (1.0, 1.0)}
    for _ in range(model.length):
        following: dict[Prefix, tuple[float, float]] = {}
        for prefix, (flow, drafted) in flows.items():
            for token in range(model.vocab_len):
                reached = drafted * float(model.draft[prefix][token])
                flowing = min(reached, flow * float(model.target[prefix][token]))
                following[(*prefix, token)] = (flowing, reached)
                total += flowing
        flows = following
    return total
