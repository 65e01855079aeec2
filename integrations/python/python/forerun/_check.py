"""Proof by enumeration, for anyone's acceptance code.

Every draft of a small model, every outcome of every random choice, each with its exact
probability: the law of the output, compared with the target's own. Nothing is sampled, and an
error above rounding is a proof that the code is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._chance import Chance, outcomes
from ._model import Model, Prefix, Vector, battery, normal
from ._sampled import SampledReport, sampled

TOLERANCE = 1e-12


@dataclass(frozen=True)
class DraftCase:
    """What was drafted: of one path ``tokens`` and ``rows``, of several ``paths``."""

    paths: tuple[Prefix, ...]
    model: Model

    @property
    def tokens(self) -> Prefix:
        """The tokens of the first path."""
        return self.paths[0]

    @property
    def rows(self) -> Vector:
        """What each token of the first path was drawn from."""
        return np.array([self.row(self.tokens[:n]) for n in range(len(self.tokens))])

    def row(self, prefix: Sequence[int]) -> Vector:
        """What a token after these was drawn from."""
        return self.model.draft[tuple(prefix)].copy()


@dataclass(frozen=True)
class TargetCase:
    """The target's rows: ``rows`` along the first path, ``row`` after any prefix."""

    path: Prefix
    model: Model

    @property
    def rows(self) -> Vector:
        """The target's row before each token of the first path, and the one after all."""
        return np.array([self.row(self.path[:n]) for n in range(len(self.path) + 1)])

    def row(self, prefix: Sequence[int]) -> Vector:
        """The target's row after these tokens."""
        return self.model.target[tuple(prefix)].copy()


Procedure = Callable[[DraftCase, TargetCase, Chance], Any]


@dataclass(frozen=True)
class Finding:
    """What enumeration found on one model."""

    worst_error: float
    accepted: float
    runs: int
    #: For every text: what the target says, and what the code produces.
    texts: dict[Prefix, tuple[float, float]] = field(repr=False)


@dataclass(frozen=True)
class Counterexample:
    """The smallest model found on which the output is not the target's."""

    model: Model
    finding: Finding

    def __str__(self) -> str:
        model = self.model
        lines = [
            f"not lossless: on a model of {model.vocab_len} tokens, with drafts of {model.length}, "
            f"texts are off by up to {self.finding.worst_error:.3g}",
            "",
            "after        target's row             drafter's row",
        ]
        for after, prefix in _distinct(model):
            # After the longest prefixes nothing is drafted.
            draft = _shown(model.draft[prefix]) if len(prefix) < model.length else ""
            lines.append(f"{after:12} {_shown(model.target[prefix]):24} {draft}".rstrip())
        lines += ["", "text         the target says it   your code says it"]
        texts = sorted(self.finding.texts.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
        for text, (wanted, produced) in texts[:8]:
            if abs(wanted - produced) > TOLERANCE:
                lines.append(f"{_text(text):12} {wanted:<20.6g} {produced:.6g}")
        return "\n".join(lines)


def _distinct(model: Model) -> Iterator[tuple[str, Prefix]]:
    """The prefixes to print: one for each length where all of a length have the same rows."""
    for length in range(model.length + 1):
        alike = sorted(prefix for prefix in model.target if len(prefix) == length)
        rows = {(*model.target[prefix], *model.draft[prefix]) for prefix in alike}
        if len(rows) == 1 and len(alike) > 1:
            yield f"any {length}", alike[0]
        else:
            yield from ((_text(prefix), prefix) for prefix in alike)


def _text(tokens: Prefix) -> str:
    return " ".join(map(str, tokens)) or "(nothing)"


def _shown(row: Vector) -> str:
    return " ".join(f"{probability:.4g}" for probability in row)


@dataclass(frozen=True)
class Report:
    """What a check found over all models."""

    worst_error: float
    #: Accepted tokens per model, by its name.
    accepted: dict[str, float]
    models: int
    runs: int
    counterexample: Counterexample | None

    @property
    def lossless(self) -> bool:
        return self.counterexample is None

    def __str__(self) -> str:
        if self.counterexample is not None:
            return str(self.counterexample)
        return f"lossless on {self.models} models ({self.runs} runs): worst error {self.worst_error:.1e}"


class NotLossless(AssertionError):
    """The code changes the output; the message shows the smallest model on which it does."""


def rule(scheme: str = "path", paths: int = 2) -> Callable[[Procedure], Procedure]:
    """Says how a rule is to be drafted for: ``path``, or ``paths`` for several independent ones."""
    if scheme not in ("path", "paths"):
        raise ValueError(f"scheme {scheme!r}; expected path or paths")

    def mark(procedure: Procedure) -> Procedure:
        setattr(procedure, "forerun_paths", 1 if scheme == "path" else paths)
        return procedure

    return mark


def examine(procedure: Procedure, model: Model) -> Finding:
    """Enumerates every draft and every outcome on one model."""
    count = getattr(procedure, "forerun_paths", 1)
    commits: dict[Prefix, float] = {}
    accepted, runs = 0.0, 0
    for drafted in itertools.product(list(model.drafts()), repeat=count):
        paths = tuple(path for _, path in drafted)
        probability = float(np.prod([chance for chance, _ in drafted]))

        def once(chance: Chance, paths: tuple[Prefix, ...] = paths) -> Prefix:
            draft, target = DraftCase(paths, model), TargetCase(paths[0], model)
            return _committed(procedure(draft, target, chance), paths, model.vocab_len)

        for share, committed in outcomes(once):
            commits[committed] = commits.get(committed, 0.0) + probability * share
            accepted += probability * share * (len(committed) - 1)
            runs += 1
    texts = {}
    for text in model.outputs():
        produced = sum(
            commits.get(text[:n], 0.0) * model.chance_of(text, n) for n in range(1, len(text) + 1)
        )
        texts[text] = (model.chance_of(text, 0), produced)
    # All texts together too: what is committed twice or not at all is an error of its own.
    total = sum(produced for _, produced in texts.values())
    worst = max([abs(wanted - produced) for wanted, produced in texts.values()] + [abs(total - 1.0)])
    return Finding(worst, accepted, runs, texts)


def _committed(result: Any, paths: tuple[Prefix, ...], vocab_len: int) -> Prefix:
    """The tokens to commit, from ``(accepted, next)`` or from the tokens themselves."""
    if isinstance(result, tuple) and len(result) == 2 and not hasattr(result[0], "__len__"):
        result = [*paths[0][: int(result[0])], int(result[1])]
    committed = tuple(int(token) for token in result)
    if not committed or not 0 <= committed[-1] < vocab_len:
        raise ValueError(f"committed {committed}; expected accepted tokens and one of the vocabulary")
    if all(path[: len(committed) - 1] != committed[:-1] for path in paths):
        raise ValueError(f"committed {committed}, but none of {paths} begins with {committed[:-1]}")
    return committed


def shrink(procedure: Procedure, model: Model, least: float = 1e-6) -> Counterexample:
    """The simplest model near this one on which the output is still off by ``least`` or more."""
    best = Counterexample(model, examine(procedure, model))
    for simpler in (_without_history, _rounded(2), _rounded(4), _rounded(10)):
        candidate = simpler(best.model)
        if candidate is None:
            continue
        finding = examine(procedure, candidate)
        if finding.worst_error >= least:
            best = Counterexample(candidate, finding)
            # The coarsest rounding that still shows it is the one to read.
            if simpler is not _without_history:
                break
    return best


def _without_history(model: Model) -> Model | None:
    """Rows that depend on how many tokens came before, not on which."""
    first = {len(prefix): prefix for prefix in sorted(model.target, reverse=True)}
    return replace(
        model,
        target={prefix: model.target[first[len(prefix)]] for prefix in model.target},
        draft={prefix: model.draft[first[len(prefix)]] for prefix in model.draft},
    )


def _rounded(parts: int) -> Callable[[Model], Model | None]:
    def simpler(model: Model) -> Model | None:
        tables = []
        for table in (model.target, model.draft):
            rows = {prefix: np.round(row * parts) for prefix, row in table.items()}
            if any(row.sum() == 0.0 for row in rows.values()):
                return None
            tables.append({prefix: normal(row) for prefix, row in rows.items()})
        return replace(model, target=tables[0], draft=tables[1])

    return simpler


class Check:
    """``check(rule)`` enumerates; ``check.torch`` and ``check.sampled`` take code as it is."""

    def __call__(
        self, procedure: Procedure, models: Sequence[Model] | None = None, tolerance: float = TOLERANCE
    ) -> Report:
        """Enumerates a rule over a battery of models.

        ``procedure(draft, target, chance)`` chooses by ``chance.coin`` and ``chance.pick`` alone
        and returns ``(accepted, next)``, or the tokens to commit.
        """
        models = battery() if models is None else models
        worst, runs, accepted = 0.0, 0, {}
        for done, model in enumerate(models):
            finding = examine(procedure, model)
            runs += finding.runs
            worst = max(worst, finding.worst_error)
            accepted[f"{model.name}, {model.vocab_len} tokens, drafts of {model.length}"] = finding.accepted
            if not finding.worst_error < tolerance:
                return Report(worst, accepted, done + 1, runs, shrink(procedure, model))
        return Report(worst, accepted, len(models), runs, None)

    def torch(
        self,
        function: Callable[..., Any],
        adapt: Callable[[Callable[..., Any], DraftCase, TargetCase], Any],
        models: Sequence[Model] | None = None,
        tolerance: float = TOLERANCE,
        paths: int = 1,
    ) -> Report:
        """Enumerates torch code as it is: its random calls are answered with every outcome.

        ``adapt(function, draft, target)`` calls the function in its own terms and returns the
        tokens to commit; `forerun.adapters` has some. ``paths`` are drafted independently.
        """
        from ._torch_random import Enumerated

        def procedure(draft: DraftCase, target: TargetCase, chance: Chance) -> Any:
            with Enumerated(chance):
                return adapt(function, draft, target)

        setattr(procedure, "forerun_paths", paths)
        return self(procedure, battery(seeds=1) if models is None else models, tolerance)

    def sampled(
        self,
        function: Callable[[DraftCase, TargetCase], Any],
        alpha: float = 1e-6,
        samples: int = 20_000,
        models: Sequence[Model] | None = None,
        seed: int = 0,
    ) -> SampledReport:
        """Tests a black box by betting against it: a kernel, a server, another language.

        A lossless one is called wrong with probability at most ``alpha``, however often you look.
        The report says which fault would have been found.
        """

        def run(path: Prefix, model: Model) -> Prefix:
            result = function(DraftCase((path,), model), TargetCase(path, model))
            return _committed(result, (path,), model.vocab_len)

        return sampled(run, models, alpha, samples, seed)


check = Check()


def assert_lossless(procedure: Procedure, models: Sequence[Model] | None = None) -> Report:
    """Fails with the smallest counterexample unless the rule is lossless on every model."""
    report = check(procedure, models)
    if not report.lossless:
        raise NotLossless(f"{getattr(procedure, '__name__', 'the rule')} is {report}")
    return report
