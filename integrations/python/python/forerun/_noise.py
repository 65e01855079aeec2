"""The noise of the coupled rule."""

from __future__ import annotations

from typing import Any

from . import _native
from ._rows import one_row


class Noise:
    """Noise that is a function of seed, position and token: a drafter that chooses by the same
    noise as the target is accepted most by the coupled rule."""

    def __init__(self, seed: int) -> None:
        self._native = _native.Noise(seed)

    def at(self, position: int, token: int) -> float:
        """The exponential variable of a position and token."""
        return self._native.at(position, token)

    def choose(self, position: int, probs: Any) -> int:
        """What a row chooses at a position: an exact sample of it."""
        return self._native.choose_row(position, one_row(probs))
