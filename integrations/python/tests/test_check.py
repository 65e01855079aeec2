"""The kit: what is lossless is found to be, and what is not is shown."""

import math

import numpy as np
import pytest

import forerun as fr


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
    models = fr.battery(1, shapes=[(2, 1), (3, 1), (2, 2)]) if rule is recursive else None
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
    models = fr.battery(1, shapes=[(2, 1), (3, 1), (2, 2)]) if "duplicates" in name else None
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


def test_the_plug_in_fails_with_the_counterexample(pytester):
    pytester.makepyfile(
        """
        def test_mine(assert_lossless):
            def greedy(draft, target, chance):
                return len(draft.tokens), chance.pick(target.rows[-1])
            assert_lossless(greedy)
        """
    )
    result = pytester.runpytest_subprocess("--forerun-seeds", "1")
    result.assert_outcomes(failed=1)
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
