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
from ._draft import Draft
from ._model import Model, Prefix, Vector, battery, normal
from ._promise import Promise, Spending, exceeded, kept, spending
from ._sampled import SampledReport, sampled
from ._verify import Verdict, verify

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
    #: How far tokens stray from the target.
    spent: Spending = field(repr=False)


@dataclass(frozen=True)
class Counterexample:
    """The smallest model found on which the output is not the target's, or not as near to it as it was
    said to be."""

    model: Model
    finding: Finding
    within: Promise = None

    def __str__(self) -> str:
        model = self.model
        _, how = exceeded(self.within, self.finding.worst_error, self.finding.spent)
        promise = "lossless" if self.within is None else f"within {self.within}"
        lines = [
            f"not {promise}: on a model of {model.vocab_len} tokens, with drafts of {model.length}, {how}",
            "",
        ]
        return "\n".join(lines + (self._texts() if self.within is None else self._rows()))

    def _texts(self) -> list[str]:
        """The model, and the texts that differ."""
        model = self.model
        lines = ["after        target's row             drafter's row"]
        for after, prefix in _distinct(model):
            # After the longest prefixes nothing is drafted.
            draft = _shown(model.draft[prefix]) if len(prefix) < model.length else ""
            lines.append(f"{after:12} {_shown(model.target[prefix]):24} {draft}".rstrip())
        lines += ["", "text         the target says it   your code says it"]
        texts = sorted(self.finding.texts.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
        for text, (wanted, produced) in texts[:8]:
            if abs(wanted - produced) > TOLERANCE:
                lines.append(f"{_text(text):12} {wanted:<20.6g} {produced:.6g}")
        return lines

    def _rows(self) -> list[str]:
        """The model, and what the next token really follows."""
        model = self.model
        lines = ["after        target's row             drafter's row            your code's row"]
        for prefix, row in sorted(self.finding.spent.rows.items(), key=lambda item: (len(item[0]), item[0])):
            draft = _shown(model.draft[prefix]) if len(prefix) < model.length else ""
            shown = f"{_shown(model.target[prefix]):24} {draft:24} {_shown(row)}"
            lines.append(f"{_text(prefix):12} {shown}")
        return lines


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
    #: What was promised; ``None`` if the code is to be lossless.
    within: Promise
    #: What was spent at worst, whatever was promised.
    spent: Spending = field(repr=False)

    @property
    def kept(self) -> bool:
        """Whether the promise was kept on every model."""
        return self.counterexample is None

    @property
    def lossless(self) -> bool:
        return self.kept and self.within is None

    def __str__(self) -> str:
        if self.counterexample is not None:
            return str(self.counterexample)
        where = f"on {self.models} models ({self.runs} runs)"
        if self.within is None:
            return f"lossless {where}: worst error {self.worst_error:.1e}"
        return f"within {self.within} {where}: {kept(self.within, self.spent)}"


class NotLossless(AssertionError):
    """The code changes the output, or by more than it promised; the message shows the smallest model on
    which it does."""


def rule(scheme: str = "path", paths: int = 2) -> Callable[[Procedure], Procedure]:
    """Says how a rule is to be drafted for: ``path``, or ``paths`` for several independent ones."""
    if scheme not in ("path", "paths"):
        raise ValueError(f"scheme {scheme!r}; expected path or paths")

    def mark(procedure: Procedure) -> Procedure:
        setattr(procedure, "forerun_paths", 1 if scheme == "path" else paths)
        return procedure

    return mark


def compiled(name: str, paths: int = 1, **options: Any) -> Procedure:
    """A rule of `forerun.verify` as it is compiled, for the check and to compare others with. ``options``
    are those of `forerun.verify`: a lossy rule's bound."""

    def procedure(draft: DraftCase, target: TargetCase, chance: Chance) -> Verdict:
        rows = [[draft.row(path[:n]) for n in range(len(path))] for path in draft.paths]
        tree = Draft.paths(draft.paths, rows)
        nodes = [(), *(tree.path_to(node) for node, _, _ in tree.nodes())]
        scored = np.array([target.row(node) for node in nodes])
        if name != "lossy-near":
            return verify(tree, target_probs=scored, rule=name, chance=chance, **options)
        with np.errstate(divide="ignore"):
            logits = np.log(scored)
        return verify(tree, target_logits=logits, temperature=0.0, rule=name, chance=chance, **options)

    procedure.__name__ = name
    return rule("path" if paths == 1 else "paths", paths)(procedure)


def examine(procedure: Procedure, model: Model) -> Finding:
    """Enumerates every draft and every outcome on one model."""
    count = getattr(procedure, "forerun_paths", 1)
    commits: dict[Prefix, float] = {}
    said: dict[Prefix, float] = {}
    accepted, runs = 0.0, 0
    for drafted in itertools.product(list(model.drafts()), repeat=count):
        paths = tuple(path for _, path in drafted)
        probability = float(np.prod([chance for chance, _ in drafted]))

        def once(chance: Chance, paths: tuple[Prefix, ...] = paths) -> Prefix:
            draft, target = DraftCase(paths, model), TargetCase(paths[0], model)
            result = procedure(draft, target, chance)
            committed = _committed(result, paths, model.vocab_len)
            if isinstance(result, Verdict) and result.spent is not None:
                for n, spend in enumerate(result.spent.tokens):
                    said[committed[:n]] = spend.distance
            return committed

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
    return Finding(worst, accepted, runs, texts, spending(model, commits, said))


def _committed(result: Any, paths: tuple[Prefix, ...], vocab_len: int) -> Prefix:
    """The tokens to commit, from ``(accepted, next)``, a verdict or the tokens themselves."""
    if isinstance(result, Verdict):
        result = result.tokens
    if isinstance(result, tuple) and len(result) == 2 and not hasattr(result[0], "__len__"):
        result = [*paths[0][: int(result[0])], int(result[1])]
    committed = tuple(int(token) for token in result)
    if not committed or not 0 <= committed[-1] < vocab_len:
        raise ValueError(f"committed {committed}; expected accepted tokens and one of the vocabulary")
    if all(path[: len(committed) - 1] != committed[:-1] for path in paths):
        raise ValueError(f"committed {committed}, but none of {paths} begins with {committed[:-1]}")
    return committed


def shrink(
    procedure: Procedure, model: Model, within: Promise = None, least: float = 1e-6
) -> Counterexample:
    """The simplest model near this one on which the promise is still broken by ``least`` or more."""
    best = Counterexample(model, examine(procedure, model), within)
    for simpler in (_without_history, _rounded(2), _rounded(4), _rounded(10)):
        candidate = simpler(best.model)
        if candidate is None:
            continue
        finding = examine(procedure, candidate)
        if exceeded(within, finding.worst_error, finding.spent)[0] >= least:
            best = Counterexample(candidate, finding, within)
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
        self,
        procedure: Procedure,
        models: Sequence[Model] | None = None,
        tolerance: float = TOLERANCE,
        within: Promise = None,
    ) -> Report:
        """Enumerates a rule over a battery of models.

        ``procedure(draft, target, chance)`` chooses by ``chance.coin`` and ``chance.pick`` alone
        and returns ``(accepted, next)``, the tokens to commit, or the `Verdict` of `forerun.verify`.

        The rule is to be lossless, unless it is to keep a promise: ``within`` a total variation at every
        token, a `Budget`, or `Near` for greedy decoding. If it returns verdicts, they must state what
        was spent.
        """
        if isinstance(within, (int, float)) and not 0.0 <= within <= 1.0:
            raise ValueError(f"within is {within}; expected 0 to 1")
        models = battery() if models is None else models
        worst, runs, accepted, spent = 0.0, 0, {}, Spending()
        example = None
        for model in models:
            finding = examine(procedure, model)
            runs += finding.runs
            worst, spent = max(worst, finding.worst_error), spent.worse(finding.spent)
            accepted[f"{model.name}, {model.vocab_len} tokens, drafts of {model.length}"] = finding.accepted
            if not exceeded(within, finding.worst_error, finding.spent)[0] < tolerance:
                example = shrink(procedure, model, within)
                break
        return Report(worst, accepted, len(accepted), runs, example, within, spent)

    def torch(
        self,
        function: Callable[..., Any],
        adapt: Callable[[Callable[..., Any], DraftCase, TargetCase], Any],
        models: Sequence[Model] | None = None,
        tolerance: float = TOLERANCE,
        paths: int = 1,
        within: Promise = None,
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
        return self(procedure, battery(seeds=1) if models is None else models, tolerance, within)

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
        The report says which fault would have been found. A promise is not tested this way:
        ``forerun certify --lossy`` does it, on real models.
        """

        def run(path: Prefix, model: Model) -> Prefix:
            result = function(DraftCase((path,), model), TargetCase(path, model))
            return _committed(result, (path,), model.vocab_len)

        return sampled(run, models, alpha, samples, seed)


check = Check()


def assert_lossless(
    procedure: Procedure, models: Sequence[Model] | None = None, within: Promise = None
) -> Report:
    """Fails with the smallest counterexample unless the rule is lossless on every model, or keeps the
    promise that is given for it."""
    report = check(procedure, models, within=within)
    if not report.kept:
        raise NotLossless(f"{getattr(procedure, '__name__', 'the rule')} is {report}")
    return report
