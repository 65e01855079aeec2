"""Verdicts: one path, many paths, trees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._draft import Draft
from ._native import Row
from ._rows import Rows, Sparse, as_rows, each_row

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Verdict:
    """What was decided: ``tokens`` are the accepted ones and ``next``, to be committed.

    ``node`` is the last accepted node of a `Draft`; of a path, the number of accepted tokens.
    """

    accepted: int
    next: int
    tokens: list[int]
    node: int


@dataclass(frozen=True)
class Verdicts:
    """What was decided on each sequence of a batch."""

    accepted: Integers
    next: Integers
    drafted: list[list[int]]

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


def verify(
    tokens: Sequence[int] | Draft,
    draft_probs: Any = None,
    target_logits: Any = None,
    *,
    draft_logits: Any = None,
    target_probs: Any = None,
    rule: str = "block",
    temperature: float = 1.0,
    seed: int,
    position: int = 0,
) -> Verdict:
    """Judges one drafted path, or a `Draft` of any shape.

    Token ``n`` was drawn from draft row ``n``; without draft rows the tokens are fixed (from an
    n-gram, say). The target has one row more than there are tokens; for a `Draft`, one for the
    root and one for each node. Logits are sampled at ``temperature``, 0 meaning the largest alone;
    probabilities are taken as they are. ``position`` counts the tokens committed before, for the
    coupled rule.
    """
    if isinstance(tokens, Draft):
        if draft_probs is not None or draft_logits is not None:
            raise TypeError("a Draft has rows of its own; give the target's alone")
        rows = _target_rows(target_logits, target_probs, temperature)
        return _judge_draft(tokens, rows, rule, seed, position)
    drafted = [int(token) for token in tokens]
    sparse = isinstance(draft_probs, Sparse) or isinstance(target_probs, Sparse)
    if sparse or rule not in _native.path_rules():
        target = _target_rows(target_logits, target_probs, temperature)
        draft = _draft_rows(draft_logits, draft_probs, temperature)
        path = _path(drafted, draft, target[0].vocab_len if target else 0)
        return _judge_draft(path, target, rule, seed, position)
    draft_given = draft_probs is not None or draft_logits is not None
    batch = _Batch(
        tokens=drafted,
        room=None,
        places=[0, len(drafted)],
        draft=as_rows(draft_logits, draft_probs, temperature, "draft") if draft_given else None,
        target=as_rows(target_logits, target_probs, temperature, "target"),
        seeds=[seed],
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
) -> Verdicts:
    """Judges the drafted paths of many sequences, each by its own seed.

    Padded: ``tokens[B, L]``, draft rows ``[B, L, V]``, target rows ``[B, L + 1, V]``, and
    ``lengths[B]`` if not all of ``L`` are drafted. Ragged: all sequences after each other,
    ``tokens[N]``, draft rows ``[N, V]``, target rows ``[N + B, V]`` and ``offsets[B + 1]``.

    Rows are read where they lie, on all cores, without Python's lock. A verdict depends on its own
    sequence and seed alone.
    """
    drafted, flat, room, places = _places(tokens, lengths, offsets)
    each = None if isinstance(temperature, (int, float)) else [float(t) for t in temperature]
    one = float(temperature) if isinstance(temperature, (int, float)) else 1.0
    if isinstance(draft_probs, Sparse) or isinstance(target_probs, Sparse):
        if room is None:
            raise ValueError("sparse rows of ragged batches; pad the tokens and give lengths")
        judged = [
            verify(
                drafted[n],
                _cut(draft_probs, n, len(drafted[n])),
                _cut(target_logits, n, len(drafted[n]) + 1),
                draft_logits=_cut(draft_logits, n, len(drafted[n])),
                target_probs=_cut(target_probs, n, len(drafted[n]) + 1),
                rule=rule,
                temperature=one if each is None else each[n],
                seed=seeds[n],
                position=0 if positions is None else positions[n],
            )
            for n in range(len(drafted))
        ]
        accepted = [verdict.accepted for verdict in judged]
        following = [verdict.next for verdict in judged]
        return Verdicts(np.array(accepted, np.int64), np.array(following, np.int64), drafted)
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


def _target_rows(logits: Any, probs: Any, temperature: float) -> list[Row]:
    if (logits is None) == (probs is None):
        raise TypeError("give either logits or probabilities of the target")
    return each_row(probs, None) if logits is None else each_row(logits, temperature)


def _draft_rows(logits: Any, probs: Any, temperature: float) -> list[Row] | None:
    if logits is None and probs is None:
        return None
    return each_row(probs, None) if logits is None else each_row(logits, temperature)


def _path(tokens: list[int], rows: list[Row] | None, vocab_len: int) -> Draft:
    if rows is None or not tokens:
        return Draft.fixed_path(tokens, vocab_len)
    return Draft.path(tokens, rows[: len(tokens)])


def _judge_draft(draft: Draft, rows: list[Row], rule: str, seed: int, position: int) -> Verdict:
    where = (seed, position)
    node, accepted, following = _native.verify_block(draft.native, rows, rule, where)
    return Verdict(accepted, following, draft.path_to(node) + [following], node)


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


def _cut(rows: Any, sequence: int, count: int) -> Any:
    if rows is None:
        return None
    if isinstance(rows, Sparse):
        ids, probs = np.asarray(rows.ids), np.asarray(rows.probs)
        return Sparse(ids[sequence, :count], probs[sequence, :count], rows.vocab_len)
    return rows[sequence][:count]
