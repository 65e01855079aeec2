"""Drafts of any shape, and how each token came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native
from ._rows import one_row


class DraftBuilder:
    """A draft while it grows. Nodes and rows are numbers; node 0 is the root."""

    def __init__(self, scheme: str, vocab_len: int) -> None:
        self._tree = _native.DraftBuilder(scheme, vocab_len)

    def row(self, probs: Any) -> int:
        """Hands over a row to draw from; `forerun.row` makes other kinds of row."""
        return self._tree.row(one_row(probs))

    def sampled(self, parent: int, row: int, token: int) -> int:
        """Adds a token that was drawn from ``row``, in the order of drawing. A token that was drawn
        before is the same node again, and must be added again."""
        return self._tree.sampled(parent, row, int(token))

    def fixed(self, parent: int, token: int) -> int:
        """Adds a token that was chosen without drawing: from an n-gram, say."""
        return self._tree.fixed(parent, int(token))

    def finish(self) -> Draft:
        """Ends the draft."""
        return Draft(self._tree.finish())


class Draft:
    """A tree of drafted tokens, the rows they were drawn from, and the scheme of drawing."""

    def __init__(self, native: _native.Draft) -> None:
        self.native = native

    @staticmethod
    def start(scheme: str, vocab_len: int) -> DraftBuilder:
        """Begins a draft: ``paths``, ``independent``, ``without-replacement`` or ``beam``."""
        return DraftBuilder(scheme, vocab_len)

    @staticmethod
    def path(tokens: Sequence[int], rows: Any) -> Draft:
        """One path: token ``n`` was drawn from ``rows[n]``."""
        return Draft.paths([tokens], [rows])

    @staticmethod
    def fixed_path(tokens: Sequence[int], vocab_len: int) -> Draft:
        """One path of tokens that were chosen without drawing."""
        tree = DraftBuilder("independent", vocab_len)
        node = 0
        for token in tokens:
            node = tree.fixed(node, token)
        return tree.finish()

    @staticmethod
    def paths(paths: Sequence[Sequence[int]], rows: Any) -> Draft:
        """Whole paths of equal length from one drafter: token ``n`` of path ``k`` was drawn from
        ``rows[k][n]``. Paths that share a prefix share its row."""
        given = [[one_row(row) for row in path] for path in rows]
        if [len(path) for path in given] != [len(path) for path in paths] or not any(given):
            raise ValueError("expected a row for each token of each path")
        tree = _native.DraftBuilder("paths", given[0][0].vocab_len)
        seen: dict[tuple[int, ...], int] = {}
        for path, its_rows in zip(paths, given):
            node = 0
            for place, token in enumerate(path):
                prefix = tuple(int(before) for before in path[:place])
                if prefix not in seen:
                    seen[prefix] = tree.row(its_rows[place])
                node = tree.sampled(node, seen[prefix], int(token))
        return Draft(tree.finish())

    @property
    def vocab_len(self) -> int:
        """How many tokens the vocabulary has."""
        return self.native.vocab_len

    def __len__(self) -> int:
        return len(self.native)

    def nodes(self) -> list[tuple[int, int, int]]:
        """The drafted nodes: number, token and parent, parents first. The target is scored at the
        root and after each of them, in this order."""
        return self.native.nodes()

    def path_to(self, node: int) -> list[int]:
        """The tokens that lead to a node."""
        return self.native.path_to(node)
