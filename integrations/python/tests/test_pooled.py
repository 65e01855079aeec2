"""The pooled rule in plain torch: proved for several paths, and what is easily got wrong is caught."""

import inspect
import shutil

import numpy as np
import pytest

import forerun as fr

torch = pytest.importorskip("torch")

import forerun.torch as rules  # noqa: E402

SMALL = [(2, 1), (3, 1), (2, 2)]


@pytest.mark.parametrize("paths", [1, 2, 3])
def test_pooled_verification_is_exact(paths):
    models = fr.battery(1, SMALL if paths < 3 else SMALL[:2])
    report = fr.check.torch(rules.pooled_verify, fr.adapters.batched_paths, models, paths=paths)
    print(report)
    assert report.lossless and report.worst_error < 1e-12, str(report)
    most = np.array([fr.optimum(model) for model in models])
    accepted = np.array(list(report.accepted.values()))
    if paths == 1:
        # One path is block verification, which reaches the optimum.
        assert np.allclose(accepted, most, atol=1e-12)
    else:
        # A second path never costs anything on these, and mostly pays.
        assert (accepted > most - 1e-6).all() and (accepted > most + 1e-3).sum() > len(models) // 3


def test_the_search_for_bars_changes_how_much_is_accepted_and_nothing_else():
    models = fr.battery(1, [(3, 1)])
    accepted = []
    for steps in (0, 1, 8):
        adapt = lambda function, draft, target: fr.adapters.batched_paths(  # noqa: E731
            function, draft, target, steps=steps
        )
        report = fr.check.torch(rules.pooled_verify, adapt, models, paths=2)
        assert report.lossless
        accepted.append(sum(report.accepted.values()))
    assert accepted[0] < accepted[1] - 1e-3 and accepted[1] <= accepted[2] + 1e-9


def test_pooled_verification_minds_lengths():
    """Rows beyond a sequence's draft are padding, whatever they hold."""

    def padded(function, draft, target):
        tokens = torch.tensor([[[*path, 0] for path in draft.paths]])
        rows = [[*(draft.row(path[:n]) for n in range(len(path))), draft.row(())] for path in draft.paths]
        more = [
            [*(target.row(path[:n]) for n in range(len(path) + 1)), target.row(())]
            for path in draft.paths
        ]
        lengths = torch.tensor([len(draft.tokens)])
        path, accepted, following = function(
            tokens, torch.tensor(np.array([rows])), torch.tensor(np.array([more])), lengths=lengths
        )
        return [*draft.paths[int(path[0])][: int(accepted[0])], int(following[0])]

    models = fr.battery(1, SMALL[:2])
    assert fr.check.torch(rules.pooled_verify, padded, models, paths=2).lossless


MISTAKES = {
    "duplicates take one share": ("alike = same.sum(dim=2)", "alike = torch.ones_like(weight)"),
    "the grant is forgotten in the residual": ("(alike * grant)", "alike"),
    "a node with two paths is left twice": ("left.clamp(min=0.0) * first[..., None]", "left.clamp(min=0.0)"),
    "passing tokens are all served": ("* passes * _first_chance(passes, at, share)", "* passes"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_pooled_verification_are_caught(name):
    source = inspect.getsource(rules.pooled_verify)
    right, wrong = MISTAKES[name]
    assert source.count(right) == 1
    scope = dict(vars(rules))
    exec(source.replace(right, wrong), scope)
    models = fr.battery(1, SMALL)
    report = fr.check.torch(scope["pooled_verify"], fr.adapters.batched_paths, models, paths=2)
    assert not report.lossless and report.worst_error > 1e-3, name


def random_rows(*shape):
    rng = np.random.default_rng(3)
    return torch.tensor(rng.dirichlet(np.full(shape[-1], 0.3), shape[:-1]))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["block_verify", "pooled_verify"])
def test_torch_compiles_each_rule_as_one_graph(name, backend):
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no C++ compiler, which torch.compile needs on a CPU")
    import torch._inductor.config as inductor

    rule = getattr(rules, name)
    paths = () if name == "block_verify" else (2,)
    tokens = torch.zeros((3, *paths, 2), dtype=torch.int64)
    given = tokens, random_rows(3, *paths, 2, 50), random_rows(3, *paths, 3, 50)
    # Torch's own random numbers, so that the same seed says the same.
    with inductor.patch(fallback_random=True):
        compiled = torch.compile(rule, fullgraph=True, backend=backend)
        for seed in range(5):
            torch.manual_seed(seed)
            plain = rule(*given)
            torch.manual_seed(seed)
            assert all(torch.equal(one, two) for one, two in zip(plain, compiled(*given)))
