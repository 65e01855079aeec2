"""Verdicts: one path, many paths, trees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _native
from ._chance import Chance
from ._draft import Draft
from ._native import Budget, Near, Row
from ._promise import Spend, Spent, bound
from ._rows import Rows, Sparse, are_checked, as_array, as_rows, each_row

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Verdict:
    """What was decided: ``tokens`` are the accepted ones and ``next``, to be committed.

    ``node`` is the last accepted node of a `Draft`; of a path, the number of accepted tokens.
    ``spent`` is how far a lossy rule strayed from the target; ``None`` of a lossless one.
    """

    accepted: int
    next: int
    tokens: list[int]
    node: int
    spent: Spent | None = None


@dataclass(frozen=True)
class Verdicts:
    """What was decided on each sequence of a batch."""

    accepted: Integers
    next: Integers
    drafted: list[list[int]]
    #: How far a lossy rule strayed from the target in each; ``None`` of a lossless one.
    spent: list[Spent] | None = None

    def __len__(self) -> int:
        return len(self.accepted)

    def tokens(self, sequence: int) -> list[int]:
        """The tokens to commit to a sequence."""
        return self.drafted[sequence][: self.accepted[sequence]] + [int(self.next[sequence])]

    def padded(self, fill: int = -1) -> Integers:
        """The tokens of all sequences, as wide as the longest draft and one more, filled up."""
        longest = max((len(drafted) for drafted in self.drafted), default=0)
        out = np.full((len(self), longest + 1), fill, dtype=np.int64)
        for sequence in range(len(self)):
            tokens = self.tokens(sequence)
            out[sequence, : len(tokens)] = tokens
        return out


@dataclass(frozen=True)
class _Batch:
    """A batch as the compiled part takes it."""

    tokens: list[int]
    room: int | None
    places: list[int]
    draft: Rows | None
    target: Rows
    seeds: list[int]
    positions: list[int] | None
    temperatures: list[float] | None
    threads: int


@dataclass(frozen=True)
class _Asked:
    """How a draft is to be judged, as the compiled part takes it."""

    rule: str
    seed: int
    chance: Chance | None
    position: int
    budget: Budget | None
    near: Near | None
    balance: float | None
    gaps: list[float] | None = None


def verify(
    tokens: Sequence[int] | Draft,
    draft_probs: Any = None,
    target_logits: Any = None,
    *,
    draft_logits: Any = None,
    target_probs: Any = None,
    rule: str = "block",
    temperature: float = 1.0,
    seed: int | None = None,
    chance: Chance | None = None,
    position: int = 0,
    budget: float | Budget | None = None,
    near: Near | None = None,
    balance: float | None = None,
) -> Verdict:
    """Judges one drafted path, or a `Draft` of any shape.

    Token ``n`` was drawn from draft row ``n``; without draft rows the tokens are fixed (from an
    n-gram, say). Rows are an array, `Sparse`, or a list of what `row` returns. The target has one row more than there are tokens; for a `Draft`, one for the
    root and one for each node. Logits are sampled at ``temperature``, 0 meaning the largest alone;
    probabilities are taken as they are. ``position`` counts the tokens committed before, for the
    coupled rule. A ``chance`` instead of a seed lets `check` enumerate the verdict.

    Every rule is lossless but two. ``lossy-block`` keeps within a ``budget`` of total variation at
    every token, or within what a `Budget` says; ``lossy-near``, for logits at temperature 0, forgives
    tokens that are `Near` the best. Both say what they `Verdict.spent`; hand its balance to the text's next
    verdict.
    """
    if (seed is None) == (chance is None):
        raise TypeError("give either a seed or a chance")
    if chance is not None and rule == "coupled":
        raise ValueError("coupled takes no chance: its randomness is noise, a function of the seed")
    if balance is not None and rule not in _native.lossy_rules():
        raise ValueError(f"a balance for {rule}, which is lossless and keeps no account")
    asked = _Asked(rule, seed or 0, chance, position, bound(rule, budget, near), near, balance)
    if isinstance(tokens, Draft):
        if draft_probs is not None or draft_logits is not None:
            raise TypeError("a Draft has rows of its own; give the target's alone")
        return _judge(tokens, (target_logits, target_probs, temperature), asked)
    drafted = [int(token) for token in tokens]
    checked = are_checked(draft_probs) or are_checked(target_probs)
    if checked or chance is not None or rule not in _native.path_rules():
        target = (target_logits, target_probs, temperature)
        return _judge(_path(drafted, (draft_logits, draft_probs, temperature), target), target, asked)
    draft_given = draft_probs is not None or draft_logits is not None
    batch = _Batch(
        tokens=drafted,
        room=None,
        places=[0, len(drafted)],
        draft=as_rows(draft_logits, draft_probs, temperature, "draft") if draft_given else None,
        target=as_rows(target_logits, target_probs, temperature, "target"),
        seeds=[asked.seed],
        positions=[position],
        temperatures=None,
        threads=1,
    )
    accepted, following = _native.verify_paths(batch, rule)
    committed = drafted[: accepted[0]] + following
    return Verdict(accepted[0], following[0], committed, accepted[0])


def verify_batch(
    tokens: Any,
    draft_probs: Any = None,
    target_logits: Any = None,
    *,
    draft_logits: Any = None,
    target_probs: Any = None,
    lengths: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    rule: str = "block",
    temperature: float | Sequence[float] = 1.0,
    seeds: Sequence[int],
    positions: Sequence[int] | None = None,
    threads: int | None = None,
    budget: float | Budget | None = None,
    near: Near | None = None,
    balances: Sequence[float | None] | None = None,
) -> Verdicts:
    """Judges the drafted paths of many sequences, each by its own seed.

    Padded: ``tokens[B, L]``, draft rows ``[B, L, V]``, target rows ``[B, L + 1, V]``, and
    ``lengths[B]`` if not all of ``L`` are drafted. Ragged: all sequences after each other,
    ``tokens[N]``, draft rows ``[N, V]``, target rows ``[N + B, V]`` and ``offsets[B + 1]``.

    Rows are read where they lie, on all cores, without Python's lock; if they are sparse or the rule is
    lossy, one sequence after the other. A verdict depends on its own sequence and seed alone. The
    bounds of lossy rules are as for `verify`; ``balances`` has one for each sequence.
    """
    drafted, flat, room, places = _places(tokens, lengths, offsets)
    each = None if isinstance(temperature, (int, float)) else [float(t) for t in temperature]
    one = float(temperature) if isinstance(temperature, (int, float)) else 1.0
    sparse = isinstance(draft_probs, Sparse) or isinstance(target_probs, Sparse)
    if sparse or rule in _native.lossy_rules():
        if len(seeds) != len(drafted):
            raise _native.BatchError(f"{len(seeds)} seeds for {len(drafted)} sequences")
        judged = []
        for n, path in enumerate(drafted):
            # Of flat rows, the target has one more for each sequence before.
            at = n if room is not None else slice(places[n], None)
            at_target = n if room is not None else slice(places[n] + n, None)
            verdict = verify(
                path,
                _cut(draft_probs, at, len(path)),
                _cut(target_logits, at_target, len(path) + 1),
                draft_logits=_cut(draft_logits, at, len(path)),
                target_probs=_cut(target_probs, at_target, len(path) + 1),
                rule=rule,
                temperature=one if each is None else each[n],
                seed=int(seeds[n]),
                position=0 if positions is None else int(positions[n]),
                budget=budget,
                near=near,
                balance=None if balances is None else balances[n],
            )
            judged.append(verdict)
        return _together(judged, drafted)
    bound(rule, budget, near)
    if balances is not None:
        raise ValueError(f"balances for {rule}, which is lossless and keeps no account")
    draft_given = draft_probs is not None or draft_logits is not None
    batch = _Batch(
        tokens=flat,
        room=room,
        places=places,
        draft=as_rows(draft_logits, draft_probs, one, "draft") if draft_given else None,
        target=as_rows(target_logits, target_probs, one, "target"),
        seeds=[int(seed) for seed in seeds],
        positions=None if positions is None else [int(position) for position in positions],
        temperatures=each,
        threads=threads or os.cpu_count() or 1,
    )
    _check_shape(batch, len(drafted))
    accepted, following = _native.verify_paths(batch, rule)
    return Verdicts(np.array(accepted, np.int64), np.array(following, np.int64), drafted)


#: Logits, probabilities and temperature, as they were given.
_Given = tuple[Any, Any, float]


def _rows(given: _Given, whose: str) -> list[Row]:
    logits, probs, temperature = given
    if (logits is None) == (probs is None):
        raise TypeError(f"give either logits or probabilities of the {whose}")
    return each_row(probs, None) if logits is None else each_row(logits, temperature)


def _path(tokens: list[int], draft: _Given, target: _Given) -> Draft:
    if (draft[0] is None and draft[1] is None) or not tokens:
        rows = _rows(target, "target")
        return Draft.fixed_path(tokens, rows[0].vocab_len if rows else 0)
    return Draft.path(tokens, _rows(draft, "draft")[: len(tokens)])


def _judge(draft: Draft, target: _Given, asked: _Asked) -> Verdict:
    rows = _rows(target, "target")
    if asked.near is not None:
        logits, _, temperature = target
        if logits is None or temperature != 0.0:
            raise ValueError(
                "lossy-near is for logits at temperature 0; give target_logits and temperature=0, or use "
                "lossy-block"
            )
        asked = replace(asked, gaps=_native.gaps(draft.native, as_array(logits)))
    node, accepted, following, spends = _native.verify_block(draft.native, rows, asked)
    spent = None if spends is None else Spent(tuple(Spend(*spend) for spend in spends))
    return Verdict(accepted, following, draft.path_to(node) + [following], node, spent)


def _together(verdicts: list[Verdict], drafted: list[list[int]]) -> Verdicts:
    accepted = np.array([verdict.accepted for verdict in verdicts], np.int64)
    following = np.array([verdict.next for verdict in verdicts], np.int64)
    spent = [verdict.spent for verdict in verdicts if verdict.spent is not None]
    return Verdicts(accepted, following, drafted, spent if len(spent) == len(verdicts) else None)


def _places(
    tokens: Any, lengths: Sequence[int] | None, offsets: Sequence[int] | None
) -> tuple[list[list[int]], list[int], int | None, list[int]]:
    """The drafted tokens of each sequence, all of them, the room for each, and their places."""
    array = np.asarray(tokens, dtype=np.int64)
    if offsets is not None:
        if lengths is not None or array.ndim != 1:
            raise ValueError("ragged batches have flat tokens and offsets, no lengths")
        places = [int(offset) for offset in offsets]
        flat = [int(token) for token in array]
        return [flat[a:b] for a, b in zip(places, places[1:])], flat, None, places
    if array.ndim != 2:
        raise ValueError(f"tokens of shape {array.shape}; expected (sequences, tokens), or offsets")
    count, room = array.shape
    places = [room] * count if lengths is None else [int(length) for length in lengths]
    # Padding may be any number; none of it is read.
    flat = [
        int(token) if n < length else 0
        for row, length in zip(array, places)
        for n, token in enumerate(row)
    ]
    return [flat[n * room : n * room + length] for n, length in enumerate(places)], flat, room, places


def _check_shape(batch: _Batch, sequences: int) -> None:
    """Rows of a padded batch have a place for each token, so that none is taken for another."""
    count = len(batch.tokens)
    ragged = batch.room is None
    draft: tuple[int, ...] = (count,) if ragged else (sequences, batch.room or 0)
    target: tuple[int, ...] = (count + sequences,) if ragged else (sequences, (batch.room or 0) + 1)
    for rows, shape in ((batch.draft, draft), (batch.target, target)):
        if rows is not None and rows.shape[:-1] != shape:
            whose = "draft" if rows is batch.draft else "target"
            wanted = ", ".join(map(str, shape))
            raise ValueError(f"{whose} rows of shape {rows.shape}; expected ({wanted}, vocabulary)")


def _cut(rows: Any, place: int | slice, count: int) -> Any:
    """The first rows of a sequence, or of what follows in flat ones."""
    if rows is None:
        return None
    if isinstance(rows, Sparse):
        ids, probs = np.asarray(rows.ids), np.asarray(rows.probs)
        return Sparse(ids[place][:count], probs[place][:count], rows.vocab_len)
    return rows[place][:count]
