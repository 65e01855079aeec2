"""The kit: what is lossless is found to be, and what is not is shown."""

import math
from dataclasses import replace

import numpy as np
import pytest

import forerun as fr


SMALL = [(2, 1), (3, 1), (2, 2)]


def relu(row):
    return np.clip(row, 0.0, None)


@fr.rule(scheme="path")
def token(draft, target, chance):
    for n, drafted in enumerate(draft.tokens):
        if not chance.coin(target.rows[n][drafted] / draft.rows[n][drafted]):
            return n, chance.pick(relu(target.rows[n] - draft.rows[n]))
    return len(draft.tokens), chance.pick(target.rows[-1])


def block_with(weight_of_residual, admit):
    """Block verification, but for the parts that are easily got wrong."""

    def block(draft, target, chance):
        length, weights = len(draft.tokens), [1.0]
        for n, drafted in enumerate(draft.tokens):
            weights.append(min(1.0, weights[n] * target.rows[n][drafted] / draft.rows[n][drafted]))
        if chance.coin(weights[length]):
            return length, chance.pick(target.rows[-1])
        for n in reversed(range(length)):
            weight = weight_of_residual(weights[n])
            residual = relu(weight * target.rows[n] - draft.rows[n])
            mass = residual.sum()
            if n == 0 or mass > 0 and chance.coin(admit(mass, weights[n])):
                return n, chance.pick(residual if mass > 0 else target.rows[n])
        raise AssertionError

    return block


block = block_with(lambda weight: weight, lambda mass, weight: mass / (mass + 1 - weight))


@fr.rule(scheme="paths", paths=2)
def recursive(draft, target, chance):
    """SpecInfer over two paths: duplicates are tried twice."""
    committed = ()
    paths = list(draft.paths)
    while True:
        left = target.row(committed)
        candidates = [path for path in paths if path[: len(committed)] == committed and len(path) > len(committed)]
        for path in candidates:
            drafted, row = path[len(committed)], draft.row(committed)
            if chance.coin(left[drafted] / row[drafted]):
                committed = (*committed, drafted)
                break
            left = relu(left - row)
            left = left / left.sum() if left.sum() > 0 else target.row(committed)
        else:
            following = chance.pick(left)
            if any(path[: len(committed) + 1] == (*committed, following) for path in candidates):
                committed = (*committed, following)
                continue
            return [*committed, following]


@fr.rule(scheme="paths", paths=2)
def without_duplicates(draft, target, chance):
    """The mistake that shipped: the tree keeps one child, and it is tried once."""

    class Once:
        paths = tuple(dict.fromkeys(draft.paths))
        row = staticmethod(draft.row)

    return recursive(Once, target, chance)


@pytest.mark.parametrize("rule", [token, block, recursive])
def test_what_is_lossless_is_proved(rule, assert_lossless):
    models = fr.battery(1, SMALL) if rule is recursive else None
    report = fr.check(rule, models) if models else assert_lossless(rule)
    assert report.lossless and report.worst_error < 1e-12 and report.models > 30, str(report)


def no_residual(draft, target, chance):
    for n, drafted in enumerate(draft.tokens):
        if not chance.coin(target.rows[n][drafted] / draft.rows[n][drafted]):
            return n, chance.pick(target.rows[n])
    return len(draft.tokens), chance.pick(target.rows[-1])


def stale_bonus(draft, target, chance):
    accepted, following = token(draft, target, chance)
    return (accepted, chance.pick(target.rows[-2])) if accepted == len(draft.tokens) else (accepted, following)


def lenient(draft, target, chance):
    for n, drafted in enumerate(draft.tokens):
        if not chance.coin(1.1 * target.rows[n][drafted] / draft.rows[n][drafted]):
            return n, chance.pick(relu(target.rows[n] - draft.rows[n]))
    return len(draft.tokens), chance.pick(target.rows[-1])


MISTAKES = {
    "the residual is the target": no_residual,
    "block verification with token verification's residual": block_with(
        lambda weight: 1.0, lambda mass, weight: mass / (mass + 1 - weight)
    ),
    "a prefix is admitted by its weight": block_with(lambda w: w, lambda mass, weight: weight),
    "the bonus token comes from the row before": stale_bonus,
    "a ratio that is a little too large": lenient,
    "duplicates are tried once": without_duplicates,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_caught_with_a_small_counterexample(name):
    models = fr.battery(1, SMALL) if "duplicates" in name else None
    report = fr.check(MISTAKES[name], models)
    assert not report.lossless and report.worst_error > 1e-3, name
    example = report.counterexample
    assert example.model.vocab_len <= 3 and example.model.length <= 2
    said = str(example)
    print(name, said, sep="\n")
    assert said.startswith("not lossless: on a model of") and "your code says it" in said
    # What is printed is so: the rows are the model's and the texts' probabilities are exact.
    again = fr.examine(MISTAKES[name], example.model)
    assert again.texts == example.finding.texts
    # And it is simple: the rows are few and round, not what happened to be drawn.
    distinct = {tuple(np.round(row, 6)) for row in example.model.target.values()}
    assert len(distinct) <= example.model.length + 1


def test_one_unlucky_model_hides_a_wrong_residual():
    """Why there is a battery: on many single models, the mistake does not show."""
    wrong = MISTAKES["block verification with token verification's residual"]
    errors = [fr.examine(wrong, model).worst_error for model in fr.battery(2)]
    assert sum(error < 1e-12 for error in errors) > 20 and max(errors) > 1e-2


@pytest.mark.parametrize("name", [name for name in fr.rules() if name != "coupled"])
def test_the_compiled_rules_are_proved(name):
    """The wheel's own rules, choice by choice: what Rust's tests prove holds behind Python too."""
    paths = 1 if name in ("block", "token") else 2
    report = fr.check(fr.compiled(name, paths), None if paths == 1 else fr.battery(1, SMALL))
    assert report.lossless and report.worst_error < 1e-12 and report.models > 30, str(report)
    assert report.spent.worst < 1e-9


def test_a_chance_that_fails_is_heard():
    class Broken:
        def coin(self, probability):
            raise KeyError("no coin")

        def pick(self, weights):
            return len(weights)

    rows = {"draft_probs": [[0.5, 0.5]], "target_probs": [[0.4, 0.6], [0.5, 0.5]]}
    with pytest.raises(KeyError, match="no coin"):
        fr.verify([0], **rows, chance=Broken())
    with pytest.raises(ValueError, match="chance.pick returned 2, which has no weight"):
        fr.verify([], None, target_probs=[[0.4, 0.6]], chance=Broken())
    with pytest.raises(ValueError, match="coupled takes no chance"):
        fr.verify([0], **rows, rule="coupled", chance=Broken())
    with pytest.raises(TypeError, match="either a seed or a chance"):
        fr.verify([0], **rows)


BUDGETS = [
    fr.Budget.at_every_token(0.05),
    fr.Budget.at_every_token(0.2, factor=1.5),
    fr.Budget.on_account(0.05),
    fr.Budget.on_account(0.1, step=0.15, bank=0.3),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=repr)
def test_a_budget_is_kept_and_what_was_spent_is_what_is_said(budget, assert_lossless):
    report = assert_lossless(fr.compiled("lossy-block", budget=budget), within=budget)
    print(report)
    assert report.kept and not report.lossless and report.models > 80
    # An account may spend at the second token what it saved at the first.
    saved = min(budget.step, 2 * budget.per_token)
    assert 0.5 * saved < report.spent.worst <= saved + 1e-12
    assert report.spent.books < 1e-12 and report.spent.outside == 0.0
    assert 1.2 < report.spent.factor <= budget.factor + 1e-12
    assert str(report).startswith(f"within {budget} on 88 models")


def test_a_lossy_rule_fails_unless_its_promise_is_given():
    rule = fr.compiled("lossy-block", budget=0.05)
    with pytest.raises(fr.NotLossless, match="^lossy-block is not lossless: on a model of 2 tokens"):
        fr.assert_lossless(rule)
    report = fr.assert_lossless(rule, within=0.05)
    assert str(report).endswith("a token spends at most 0.05")
    with pytest.raises(fr.NotLossless, match="not within 0.04: .* off by a total variation of 0.05\\n"):
        fr.assert_lossless(rule, within=0.04)
    with pytest.raises(ValueError, match="within is 5; expected 0 to 1"):
        fr.check(rule, within=5)
    # A lossless rule keeps every promise.
    assert fr.check(block, within=0.0, tolerance=1e-9).kept


def plausible(draft, target, chance):
    """Accepts what the target finds likely enough: typical acceptance."""
    for n, drafted in enumerate(draft.tokens):
        if target.rows[n][drafted] < 0.3:
            return n, chance.pick(target.rows[n])
    return len(draft.tokens), chance.pick(target.rows[-1])


def mixture(draft, target, chance):
    """Says what the drafter says one time in twenty: within 0.05, but not of the target's own tokens."""
    if chance.coin(0.05):
        return 1, chance.pick(target.rows[1])
    return token(draft, target, chance)


def misstated(draft, target, chance):
    verdict = fr.compiled("lossy-block", budget=0.05)(draft, target, chance)
    half = [replace(spend, distance=spend.distance / 2) for spend in verdict.spent.tokens]
    return replace(verdict, spent=fr.Spent(tuple(half)))


def after_the_first(draft, target, chance):
    """Takes the budget of all tokens for the first."""
    budget = fr.Budget.at_every_token(0.05 * (len(draft.tokens) + 1))
    return fr.compiled("lossy-block", budget=budget)(draft, target, chance).tokens


BROKEN = {
    "no bound": (plausible, 0.2, "off by a total variation of"),
    "a ratio that is larger": (lenient, 0.02, "off by a total variation of"),
    "tokens that the target never says": (mixture, fr.Budget.at_every_token(0.05), "the target never says"),
    "books that say half": (misstated, 0.05, "misstated by 0.025"),
    "a budget spent in advance": (after_the_first, fr.Budget.on_account(0.05), "overdrawn by"),
    "a token much likelier": (
        fr.compiled("lossy-block", budget=fr.Budget.at_every_token(0.3, factor=1000.0)),
        fr.Budget.at_every_token(0.3),
        "times as likely",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_promises_are_caught_with_a_small_counterexample(name):
    rule, promise, how = BROKEN[name]
    report = fr.check(rule, within=promise)
    assert not report.kept, name
    said = str(report)
    print(name, said, sep="\n")
    assert said.startswith(f"not within {promise}: on a model of") and how in said.splitlines()[0]
    assert "your code's row" in said and report.counterexample.model.vocab_len <= 3
    # What is printed is so.
    example = report.counterexample
    assert fr.examine(rule, example.model).spent.spends == example.finding.spent.spends


def test_a_mixture_is_as_near_as_it_says():
    assert fr.check(mixture, within=0.05).kept


def test_greedy_code_is_proved_greedy_or_near_it():
    def greedy(draft, target, chance):
        for n, drafted in enumerate(draft.tokens):
            if drafted != target.rows[n].argmax():
                return n, int(target.rows[n].argmax())
        return len(draft.tokens), int(target.rows[-1].argmax())

    assert fr.assert_lossless(greedy, within=fr.Near(0.0, 0.0)).kept
    for share in (0.5, 1.0):
        near = fr.Near(1.0, share)
        report = fr.assert_lossless(fr.compiled("lossy-near", near=near), within=near)
        assert 0.5 < report.spent.gap <= 1.0 + 1e-6 and report.spent.forgiven == share, str(report)
    for promise, how in (
        (fr.Near(0.5, 1.0), "nats below the best"),
        (fr.Near(1.0, 0.5), "up to 1 of a text's tokens are not the best"),
    ):
        report = fr.check(fr.compiled("lossy-near", near=near), within=promise)
        assert not report.kept and how in str(report).splitlines()[0], str(report)


def test_the_plug_in_fails_with_the_counterexample(pytester):
    pytester.makepyfile(
        """
        def test_mine(assert_lossless):
            def greedy(draft, target, chance):
                return len(draft.tokens), chance.pick(target.rows[-1])
            assert_lossless(greedy)

        def test_lossy(assert_lossless):
            import forerun as fr
            report = assert_lossless(fr.compiled("lossy-block", budget=0.05), within=0.05)
            assert report.models == 44
        """
    )
    result = pytester.runpytest_subprocess("--forerun-seeds", "1")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*greedy is not lossless: on a model of 2 tokens, with drafts of 1*"])


def test_code_that_draws_elsewhere_is_found_out():
    rng = np.random.default_rng(1)

    def impure(draft, target, chance):
        weights = rng.random(3) if len(target.rows[0]) == 3 else rng.random(2)
        weights[rng.integers(len(weights))] = 0.0
        return 0, chance.pick(weights)

    with pytest.raises(RuntimeError, match="led elsewhere the second time"):
        fr.check(impure, fr.battery(1, shapes=[(3, 1)]))
    with pytest.raises(ValueError, match="begins with"):
        fr.check(lambda draft, target, chance: [1 - draft.tokens[0], 0])
    with pytest.raises(ValueError, match="NaN"):
        fr.check(lambda draft, target, chance: (0, int(chance.coin(math.nan))))


def test_block_verification_reaches_the_optimum_and_token_does_not():
    better = 0
    for model in fr.battery(1):
        most = fr.optimum(model)
        assert abs(fr.examine(block, model).accepted - most) < 1e-12
        less = fr.examine(token, model).accepted
        assert less < most + 1e-12
        better += less < most - 1e-6
    assert better > 5


def test_our_own_rules_are_black_boxes_too():
    seeds = iter(range(10**9))

    def ours(draft, target):
        return fr.verify(
            draft.tokens, draft.rows, target_probs=target.rows, rule="block", seed=next(seeds)
        ).tokens

    report = fr.check.sampled(ours, samples=4_000)
    assert not report.caught, str(report)
    assert "would have been" in str(report)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_black_box_that_is_wrong_is_caught_within_what_the_report_says(share):
    """A box that says token 0 now and then: a fault of known size, at the limit and above it."""
    rng = np.random.default_rng(5)
    rows = {(): np.array([0.5, 0.5]), (0,): np.array([0.5, 0.5]), (1,): np.array([0.5, 0.5])}
    model = fr.Model(2, 1, rows, rows, "even")
    samples = 4_000
    honest = fr.check.sampled(
        lambda draft, target: (0, int(rng.choice(2, p=target.rows[0]))), models=[model], samples=samples
    )
    assert not honest.caught
    fault = honest.smallest_fault * (2.0 if share == 1.0 else 1.2)
    caught = 0
    for _ in range(10):
        # Shifting mass from text (1, ...) to (0, ...) by this much is this total variation.
        wrong = np.array([0.5 + fault, 0.5 - fault])
        report = fr.check.sampled(
            lambda draft, target: (0, int(rng.choice(2, p=wrong))), models=[model], samples=samples
        )
        caught += report.caught
    assert caught >= 9, caught


def test_betting_is_fair():
    """At a level of one in ten, an honest box is accused in less than one run in ten."""
    rng = np.random.default_rng(9)
    accused = 0
    for seed in range(60):
        report = fr.check.sampled(
            lambda draft, target: (0, int(rng.choice(target.rows.shape[1], p=target.rows[0]))),
            alpha=0.1,
            samples=300,
            seed=seed,
        )
        accused += report.caught
    assert accused <= 6


def test_an_impossible_token_is_enough():
    report = fr.check.sampled(lambda draft, target: (len(draft.tokens), 0), samples=500)
    assert report.caught and report.samples < 500
