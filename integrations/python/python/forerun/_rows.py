"""Rows of any array library as NumPy arrays that share their memory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ._native import Row

KINDS = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Rows:
    """Rows as the compiled part takes them; no temperature means weights."""

    array: np.ndarray[Any, Any]
    kind: str
    temperature: float | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)


@dataclass(frozen=True)
class Sparse:
    """Rows whose unnamed tokens have probability zero.

    ``ids`` and ``probs`` have the same shape, entries along the last axis; an id of -1 is
    padding. Probabilities need not add up to one.
    """

    ids: Any
    probs: Any
    vocab_len: int

    def row(self, index: int | tuple[int, ...]) -> Row:
        """One of the rows."""
        ids = np.asarray(self.ids)[index]
        probs, kind = as_array(np.asarray(self.probs)[index])
        real = ids >= 0
        return Row.sparse(self.vocab_len, ids[real].tolist(), (probs[real], kind))


def as_array(values: Any) -> tuple[np.ndarray[Any, Any], str]:
    """A NumPy array on the same memory, and what its numbers are.

    NumPy, torch (on the CPU), JAX and whatever else speaks DLPack or the buffer protocol are not
    copied. Half precision is passed as its bits, since not all of them are NumPy types.
    """
    name = type(values).__module__.partition(".")[0]
    if name == "torch":
        return _of_torch(values)
    if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray):
        values = np.from_dlpack(values)
    elif not hasattr(values, "dtype"):
        values = np.asarray(values, dtype=np.float64)
    kind = KINDS.get(str(values.dtype))
    if kind is None:
        raise TypeError(f"rows of {values.dtype}; expected {', '.join(KINDS)}")
    return (values.view(np.uint16) if kind in ("f16", "bf16") else values), kind


def _of_torch(tensor: Any) -> tuple[np.ndarray[Any, Any], str]:
    if tensor.device.type != "cpu":
        raise ValueError(f"rows on {tensor.device}; move them to the CPU first (`.cpu()`)")
    kind = KINDS.get(str(tensor.dtype).removeprefix("torch."))
    if kind is None:
        raise TypeError(f"rows of {tensor.dtype}; expected {', '.join(KINDS)}")
    tensor = tensor.detach()
    if kind in ("f16", "bf16"):
        return tensor.view(import_module("torch").uint16).numpy(), kind
    return tensor.numpy(), kind


def as_rows(logits: Any, probs: Any, temperature: float, whose: str) -> Rows:
    """Logits or probabilities, whichever was given."""
    if (logits is None) == (probs is None):
        raise TypeError(f"give either logits or probabilities of the {whose}")
    array, kind = as_array(probs if logits is None else logits)
    return Rows(array, kind, None if logits is None else float(temperature))


def are_checked(rows: Any) -> bool:
    """Whether rows are `Row` objects already, or sparse, and no array."""
    if isinstance(rows, Sparse):
        return True
    return isinstance(rows, (list, tuple)) and len(rows) > 0 and all(isinstance(row, Row) for row in rows)


def each_row(rows: Any, temperature: float | None) -> list[Row]:
    """A list of checked rows from an array, sparse rows, or rows already."""
    if isinstance(rows, Sparse):
        return [rows.row(index) for index in range(len(np.asarray(rows.ids)))]
    if isinstance(rows, (list, tuple)) and all(isinstance(row, Row) for row in rows):
        return list(rows)
    array, kind = as_array(rows)
    if array.ndim != 2:
        raise ValueError(f"rows of shape {array.shape}; expected (rows, vocabulary)")
    checked = []
    for index, row in enumerate(array):
        try:
            given = (row, kind)
            checked.append(
                Row.weights(given) if temperature is None else Row.softmax(given, temperature)
            )
        except ValueError as error:
            raise type(error)(f"row {index}: {error}") from None
    return checked


def one_row(row: Any) -> Row:
    """A checked row from probabilities, unless it is one already."""
    if isinstance(row, Row):
        return row
    if isinstance(row, Sparse):
        return row.row(())
    return Row.weights(as_array(row))


def row(
    probs: Any = None, logits: Any = None, temperature: float = 1.0, top_k: int | None = None
) -> Row:
    """One checked row: from probabilities, or from logits at a temperature, cut to ``top_k``."""
    given = as_rows(logits, probs, temperature, "row")
    array = (given.array, given.kind)
    if given.temperature is None:
        return Row.weights(array)
    if top_k is not None:
        return Row.top_k(array, temperature, top_k)
    return Row.softmax(array, temperature)
