"""Verdicts are Rust's, whatever the rows come as."""

import json
import os
import threading
import time

import numpy as np
import pytest

import forerun as fr

CASES = os.environ.get("FORERUN_CASES")


def made(given: dict, vocab_len: int) -> fr.Row:
    """A row as the case says it, in single precision."""
    if "ids" in given:
        probs = np.array(given["weights"], np.float32)
        return fr.Sparse(np.array(given["ids"]), probs, vocab_len).row(())
    if "logits" in given:
        logits = np.array(given["logits"], np.float32)
        return fr.row(logits=logits, temperature=given["temperature"])
    return fr.row(np.array(given["weights"], np.float32))


def bound(case: dict) -> dict:
    """How a lossy rule is asked for, and nothing for the others."""
    if "bound" not in case:
        return {}
    ((kind, numbers),) = case["bound"].items()
    given = {"near": fr.Near(**numbers)} if kind == "near" else {"budget": getattr(fr.Budget, kind)(**numbers)}
    return {**given, "balance": case["balance"]}


def told(spent: fr.Spent | None) -> list[list[float]] | None:
    return spent and [[spend.distance, spend.factor, spend.balance] for spend in spent.tokens]


@pytest.mark.skipif(CASES is None, reason="FORERUN_CASES names the cases; `just kit` makes them")
def test_ten_thousand_verdicts_are_those_of_rust() -> None:
    seen: dict[str, int] = {}
    straight = spending = 0
    with open(CASES) as lines:
        for number, line in enumerate(lines):
            case = json.loads(line)
            vocab_len, calls = case["vocab_len"], case["calls"]
            tree = fr.Draft.start(case["scheme"], vocab_len)
            for name, *args in calls:
                if name == "row":
                    tree.row(made(args[0], vocab_len))
                else:
                    getattr(tree, name)(*args)
            draft = tree.finish()
            options = {"rule": case["rule"], "seed": case["seed"], "position": case["position"]} | bound(case)
            if case["rule"] == "lossy-near":
                logits = np.array([row["logits"] for row in case["target"]], np.float32)
                verdict = fr.verify(draft, target_logits=logits, temperature=0, **options)
            else:
                target = [made(row, vocab_len) for row in case["target"]]
                verdict = fr.verify(draft, target_probs=target, **options)
            assert [verdict.node, verdict.accepted, verdict.next] == case["verdict"], number
            # To the last bit, as the verdicts.
            assert told(verdict.spent) == case.get("spent"), number
            seen[case["rule"]] = seen.get(case["rule"], 0) + 1
            straight += meets_straight(case, calls, options)
            spending += verdict.spent is not None and verdict.spent.sum > 0.0
    assert sum(seen.values()) == 10_000 and set(seen) == {*fr.rules(), *fr.lossy_rules()}, seen
    assert min(seen.values()) == 833 and straight > 200 and spending > 200, (seen, straight, spending)


def meets_straight(case: dict, calls: list, options: dict) -> bool:
    """The same path straight from arrays, where all its rows are dense and of one kind."""
    drawn = [call for call in calls if call[0] != "row"]
    rows = [call[1] for call in calls if call[0] == "row"]
    one_path = all(call[1] == place for place, call in enumerate(drawn))
    kinds = {tuple(sorted(row)) for row in case["target"]}
    if (
        options["rule"] not in [*fr.path_rules(), "lossy-block"]
        or case["scheme"] != "paths"
        or not one_path
        or kinds not in ({("weights",)}, {("logits", "temperature")})
        or any(sorted(row) != ["weights"] for row in rows)
        or not drawn
    ):
        return False
    key = "weights" if kinds == {("weights",)} else "logits"
    target = np.array([row[key] for row in case["target"]], np.float32)
    verdict = fr.verify(
        [call[3] for call in drawn],
        np.array([row["weights"] for row in rows], np.float32),
        **({"target_probs": target} if key == "weights" else {"target_logits": target}),
        temperature=0.7,
        **options,
    )
    assert [verdict.accepted, verdict.next] == case["verdict"][1:]
    assert told(verdict.spent) == case.get("spent")
    return True


def batch(rng: np.random.Generator, count: int = 6, room: int = 3, vocab: int = 40):
    draft = rng.dirichlet(np.ones(vocab), (count, room)).astype(np.float32)
    target = rng.normal(size=(count, room + 1, vocab)).astype(np.float32)
    tokens = np.array([[rng.choice(vocab, p=row / row.sum(dtype=float)) for row in rows.astype(float)] for rows in draft])
    return tokens, draft, target


@pytest.mark.parametrize("rule", ["block", "token", "nss", "coupled"])
def test_a_batch_is_its_sequences(rule: str) -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(30):
        tokens, draft, target = batch(rng)
        lengths = rng.integers(0, 4, len(tokens)).tolist()
        seeds = rng.integers(0, 2**63, len(tokens)).tolist()
        options = {"rule": rule, "temperature": 0.6}
        padded = fr.verify_batch(tokens, draft, target, lengths=lengths, seeds=seeds, **options)
        # The same ragged, one sequence after the other.
        parts = [slice(0, length) for length in lengths]
        ragged = fr.verify_batch(
            np.concatenate([row[part] for row, part in zip(tokens, parts)]),
            np.concatenate([rows[part] for rows, part in zip(draft, parts)]),
            np.concatenate([rows[: length + 1] for rows, length in zip(target, lengths)]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).tolist(),
            seeds=seeds,
            **options,
        )
        for n, length in enumerate(lengths):
            one = fr.verify(
                tokens[n][:length], draft[n][:length], target[n][: length + 1], seed=seeds[n], **options
            )
            assert padded.tokens(n) == one.tokens == ragged.tokens(n)
            seen.add(one.accepted)
        assert padded.padded().shape == (6, max(lengths) + 1)
    assert seen >= {0, 1}


def test_half_precision_and_views_are_read_where_they_lie() -> None:
    rng = np.random.default_rng(2)
    tokens, draft, target = batch(rng, vocab=600)
    halves, wide = target.astype(np.float16), np.zeros((6, 9, 1, 700), np.float32)
    wide[:, ::2, 0, :600][:, :4] = halves
    view = wide[:, :7:2, 0, :600]
    assert not view.flags.c_contiguous and view.base is not None
    seeds = list(range(6))
    one = fr.verify_batch(tokens, draft, halves, seeds=seeds)
    two = fr.verify_batch(tokens, draft, view, seeds=seeds)
    three = fr.verify_batch(tokens, draft, view.astype(np.float64), seeds=seeds)
    assert (one.padded() == two.padded()).all() and (one.padded() == three.padded()).all()


def test_other_arrays_come_by_dlpack_without_a_copy() -> None:
    class Foreign:
        """An array of another library, as far as this one can see."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    from forerun._rows import as_array

    tokens, draft, target = batch(np.random.default_rng(6))
    shared, kind = as_array(Foreign(target))
    assert kind == "f32" and np.shares_memory(shared, target)
    seeds = list(range(6))
    one = fr.verify_batch(tokens, Foreign(draft), Foreign(target), seeds=seeds)
    assert (one.padded() == fr.verify_batch(tokens, draft, target, seeds=seeds).padded()).all()


def test_sparse_rows_are_dense_rows_with_zeros() -> None:
    rng = np.random.default_rng(3)
    for seed in range(50):
        ids = np.array([[rng.permutation(50)[:4] for _ in range(2)] for _ in range(3)])
        probs = rng.random((3, 2, 4)).astype(np.float32)
        probs[0, 0, 3], ids[0, 0, 3] = 9.0, -1  # padding
        dense = np.zeros((3, 2, 50), np.float32)
        for place in np.ndindex(3, 2, 4):
            if ids[place] >= 0:
                dense[place[:2]][ids[place]] = probs[place]
        target = rng.random((3, 3, 50)).astype(np.float32)
        tokens = ids[:, :, 0]
        options = {"target_probs": target, "seeds": [seed, seed + 1, seed + 2], "rule": "block"}
        sparse = fr.verify_batch(tokens, fr.Sparse(ids, probs, 50), **options)
        assert (sparse.padded() == fr.verify_batch(tokens, dense, **options).padded()).all()


def test_a_lossy_batch_is_its_sequences() -> None:
    """Padded or ragged, dense or sparse, each with an account of its own."""
    rng = np.random.default_rng(8)
    budget = fr.Budget.on_account(0.05)
    for _ in range(20):
        tokens, draft, target = batch(rng)
        lengths = rng.integers(0, 4, len(tokens)).tolist()
        seeds, balances = rng.integers(0, 2**63, len(tokens)).tolist(), rng.uniform(0, 0.5, len(tokens)).tolist()
        options = {"rule": "lossy-block", "budget": budget, "temperature": 0.6}
        padded = fr.verify_batch(tokens, draft, target, lengths=lengths, seeds=seeds, balances=balances, **options)
        ids = np.broadcast_to(np.arange(draft.shape[2]), draft.shape)
        flat = [slice(0, length) for length in lengths]
        ragged = fr.verify_batch(
            np.concatenate([row[part] for row, part in zip(tokens, flat)]),
            fr.Sparse(
                np.concatenate([rows[part] for rows, part in zip(ids, flat)]),
                np.concatenate([rows[part] for rows, part in zip(draft, flat)]),
                draft.shape[2],
            ),
            np.concatenate([rows[: length + 1] for rows, length in zip(target, lengths)]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).tolist(),
            seeds=seeds,
            balances=balances,
            **options,
        )
        for n, length in enumerate(lengths):
            rows = draft[n][:length], target[n][: length + 1]
            one = fr.verify(tokens[n][:length], *rows, seed=seeds[n], balance=balances[n], **options)
            assert one.tokens == padded.tokens(n) == ragged.tokens(n)
            assert one.spent == padded.spent[n] == ragged.spent[n]
            assert len(one.spent.tokens) == len(one.tokens) and one.spent.most <= budget.step
    with pytest.raises(fr.BatchError, match="1 seeds for 6 sequences"):
        fr.verify_batch(tokens, draft, target, seeds=[1], **options)


def test_a_budget_buys_acceptance_and_says_what_it_cost() -> None:
    # The drafter says token 0 half of the time, the target less often.
    rows = {"draft_probs": [[0.5, 0.5]], "target_probs": [[0.4, 0.6], [0.5, 0.5]]}
    for seed in range(100):
        verdict = fr.verify([0], **rows, rule="lossy-block", budget=0.1, seed=seed)
        # All that it lacks is within the budget.
        assert verdict.accepted == 1 and abs(verdict.spent.sum - 0.1) < 1e-7
    accepted = [fr.verify([0], **rows, seed=seed).accepted for seed in range(100)]
    assert 0 in accepted and fr.verify([0], **rows, seed=1).spent is None
    # An account goes from verdict to verdict.
    options = {"rule": "lossy-block", "budget": fr.Budget.on_account(0.04), "seed": 1}
    verdict = fr.verify([0], **rows, **options)
    assert verdict.spent.tokens[0].distance <= 0.04 + 1e-9
    again = fr.verify([0], **rows, **options, balance=0.2)
    assert abs(again.spent.tokens[0].distance - 0.1) < 1e-7
    assert abs(again.spent.balance - (0.2 - again.spent.sum + 0.04 * len(again.tokens))) < 1e-12


def test_near_misses_are_forgiven_at_temperature_zero() -> None:
    logits = np.array([[0.2, 0.7], [0.1, 0.3]], np.float16)
    options = {"target_logits": logits, "temperature": 0, "rule": "lossy-near", "seed": 0}
    near = fr.Near(gap=1.0, share=0.5)
    # Half a token is saved, and one is needed.
    assert fr.verify([0], **options, near=near).tokens == [1]
    verdict = fr.verify([0], **options, near=near, balance=1.0)
    assert verdict.tokens == [0, 1] and [spend.distance for spend in verdict.spent.tokens] == [1.0, 0.0]
    assert fr.verify([0], **options, near=fr.Near(gap=0.4, share=1.0)).tokens == [1]


def test_loss_is_asked_for_by_name_and_by_number() -> None:
    rows = {"draft_probs": [[0.5, 0.5]], "target_probs": [[0.5, 0.5]] * 2, "seed": 1}
    logits = {"target_logits": np.zeros((2, 2)), "seed": 1}
    with pytest.raises(ValueError, match="lossy-block changes the output; say by how much: budget=0.02"):
        fr.verify([0], **rows, rule="lossy-block")
    with pytest.raises(ValueError, match="budget is given, but block does not take it"):
        fr.verify([0], **rows, budget=0.02)
    with pytest.raises(ValueError, match="budget is given, but block does not take it"):
        fr.verify_batch([[0]], [[[0.5, 0.5]]], target_probs=[[[0.5, 0.5]] * 2], seeds=[1], budget=0.02)
    with pytest.raises(ValueError, match="near is given, but lossy-block does not take it"):
        fr.verify([0], **rows, rule="lossy-block", budget=0.02, near=fr.Near(1.0, 0.1))
    with pytest.raises(ValueError, match="a balance for block, which is lossless"):
        fr.verify([0], **rows, balance=0.1)
    with pytest.raises(ValueError, match="the balance is NaN"):
        fr.verify([0], **rows, rule="lossy-block", budget=0.1, balance=float("nan"))
    with pytest.raises(fr.PromiseError, match="budget per token is 1.5; expected 0 to 1"):
        fr.verify([0], **rows, rule="lossy-block", budget=1.5)
    with pytest.raises(ValueError, match="lossy-near is for logits at temperature 0"):
        fr.verify([0], **logits, rule="lossy-near", near=fr.Near(1.0, 0.1))
    with pytest.raises(fr.Refusal, match="lossy-block keeps its budget for one path"):
        draft = fr.Draft.paths([[0], [1]], np.full((2, 1, 2), 0.5))
        fr.verify(draft, target_probs=np.full((3, 2), 0.5), rule="lossy-block", budget=0.1, seed=1)
    assert not set(fr.rules()) & set(fr.lossy_rules())
    assert all(name.startswith("lossy-") for name in fr.lossy_rules())


def test_several_paths_and_noise() -> None:
    rows = np.array([[0.5, 0.5], [0.5, 0.5]])
    draft = fr.Draft.paths([[0, 1], [0, 0]], [rows, rows])
    assert len(draft) == 3 and draft.path_to(3) == [0, 0]
    target = np.array([[1.0, 0.0]] * 4)
    verdict = fr.verify(draft, target_probs=target, rule="pooled", seed=1)
    assert verdict.tokens == [0, 0, 0]
    noise = fr.Noise(42)
    assert noise.choose(7, [0.0, 1.0]) == 1 and noise.at(7, 0) > 0
    chosen = [noise.choose(n, [0.25, 0.75]) for n in range(2000)]
    assert 0.7 < np.mean(chosen) < 0.8


def test_errors_name_the_row_and_the_entry() -> None:
    draft, target = np.full((2, 2, 3), 0.5, np.float32), np.zeros((2, 3, 3), np.float32)
    tokens = [[0, 1], [1, 2]]
    target[1, 1, 2] = np.nan
    with pytest.raises(fr.RowError, match="^sequence 1: target row 1: entry of token 2 is NaN$"):
        fr.verify_batch(tokens, draft, target, seeds=[1, 2])
    with pytest.raises(fr.PathError, match="sequence 0: drafted token 1 is 3, outside a vocabulary of 3"):
        fr.verify_batch([[0, 3], [1, 2]], draft, np.nan_to_num(target), seeds=[1, 2])
    with pytest.raises(fr.RowError, match="row 1: weight of token 0 is -1; expected zero or more"):
        fr.verify(fr.Draft.fixed_path([0], 2), target_probs=[[1.0, 0.0], [-1.0, 2.0]], seed=1)
    with pytest.raises(ValueError, match=r"target rows of shape \(2, 2, 3\); expected \(2, 3, vocab"):
        fr.verify_batch(tokens, draft, target[:, :2], seeds=[1, 2])
    with pytest.raises(fr.BatchError, match="1 seeds for 2 sequences"):
        fr.verify_batch(tokens, draft, np.nan_to_num(target), seeds=[1])
    with pytest.raises(TypeError, match="rows of int64; expected float32"):
        fr.verify_batch(tokens, draft, np.zeros((2, 3, 3), int), seeds=[1, 2])
    with pytest.raises(ValueError, match="do not lie side by side"):
        fr.verify_batch(tokens, draft, np.zeros((3, 3, 2), np.float32).T, seeds=[1, 2])


def test_refusals_say_what_to_use() -> None:
    rows = np.full((2, 1, 2), 0.5)
    draft = fr.Draft.paths([[0], [1]], rows)
    with pytest.raises(fr.Refusal, match="block is lossless for one path.*use pooled"):
        fr.verify(draft, target_probs=np.full((3, 2), 0.5), seed=1)
    with pytest.raises(ValueError, match='rule "best"; expected one of block, pooled'):
        fr.verify(draft, target_probs=np.full((3, 2), 0.5), rule="best", seed=1)


def test_python_runs_on_while_rows_are_read() -> None:
    """Without the lock, a thread counts on while a long batch is judged."""
    vocab, count = 100_000, 16
    target = np.zeros((count, 5, vocab), np.float32)
    tokens = np.zeros((count, 4), np.int64)
    ticks, stop = [0], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before, most = ticks[0], 0
        for seed in range(20):
            start = ticks[0]
            fr.verify_batch(tokens, None, target, seeds=range(seed, seed + count), rule="block", threads=1)
            most = max(most, ticks[0] - start)
    finally:
        stop.set()
        thread.join()
    assert most > 50, f"{most} of {ticks[0] - before} ticks within one call"
