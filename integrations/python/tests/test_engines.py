"""The plug-ins for vLLM and SGLang: on the engines' own code if it is there, else on its layout."""

from importlib.metadata import entry_points
from types import SimpleNamespace

import numpy as np
import pytest

import forerun as fr

torch = pytest.importorskip("torch")

from forerun import sglang, vllm  # noqa: E402

SMALL = [(2, 1), (3, 1), (2, 2)]


def sampling(temperature=(1.0,), generators=None):
    """What a sampler of vLLM is told, as far as the acceptance step asks."""
    temperature = torch.tensor(temperature)
    greedy = temperature == 0
    return SimpleNamespace(
        all_greedy=bool(greedy.all()), all_random=not bool(greedy.any()), temperature=temperature,
        generators=generators or {},
    )  # fmt: skip


def in_vllm(function, draft, target, ngram=False):
    """Calls ``rejection_sample`` as the engine does: the sequence is the second of three, the first
    is greedy and certain, the last drafted nothing."""
    count, rows = len(draft.tokens), torch.tensor(target.rows)
    bonus = torch.multinomial(rows[-1:], 1)
    certain = torch.full_like(rows[:1], -torch.inf)
    certain[0, 1] = 0.0
    drafted = torch.tensor(draft.rows)
    out = function(
        torch.tensor([1, *draft.tokens]),
        [1, count, 0],
        max(count, 1),
        torch.tensor([1, 1 + count, 1 + count]),
        None if ngram else torch.cat([certain.exp(), drafted]),
        torch.cat([certain, rows[:-1].log()]),
        torch.cat([torch.tensor([[0]]), bonus, torch.tensor([[1]])]),
        sampling((0.0, 1.0, 1.0)),
    ).tolist()
    said = [[token for token in row if token >= 0] for row in out]
    assert said[0] == [1, 0] and said[2] == [1], said
    return said[1]


def test_block_verification_in_the_layout_of_vllm_is_exact():
    report = fr.check.torch(vllm.block_rejection_sample, in_vllm)
    assert report.lossless and report.models == 44, str(report)
    most = [fr.optimum(model) for model in fr.battery(1)]
    assert np.allclose(list(report.accepted.values()), most, atol=1e-12)


def test_fixed_tokens_in_the_layout_of_vllm_are_exact():
    """An n-gram's: whatever was drafted, the output is the target's."""
    certain = []
    for model in fr.battery(1, SMALL):
        for token in range(model.vocab_len):
            row = np.eye(model.vocab_len)[token]
            certain.append(fr.Model(model.vocab_len, model.length, model.target, dict.fromkeys(model.target, row)))
    adapt = lambda function, draft, target: in_vllm(function, draft, target, ngram=True)  # noqa: E731
    assert fr.check.torch(vllm.block_rejection_sample, adapt, certain).lossless


def test_requests_with_seeds_repeat_and_do_not_depend_on_the_batch():
    rng = np.random.default_rng(4)
    draft = torch.tensor(rng.dirichlet(np.ones(20), 6), dtype=torch.float32)
    logits = torch.tensor(rng.normal(size=(6, 20)), dtype=torch.float32)
    tokens, bonus = torch.tensor([3, 1, 4, 1, 5, 9]), torch.tensor([[2], [6]])

    def said(first, last):
        seeded = {1: torch.Generator().manual_seed(7)}
        cumulative = torch.tensor([first, first + last])
        some = slice(3 - first, 3 + last)
        return vllm.block_rejection_sample(
            tokens[some], [first, last], 3, cumulative, draft[some], logits[some], bonus,
            sampling((1.0, 1.0), seeded),
        )[1].tolist()  # fmt: skip

    assert len({tuple(said(first, 3)) for first in (0, 1, 3) for _ in range(5)}) == 1


def test_another_vllm_is_left_alone():
    with pytest.raises(RuntimeError, match="takes draft, target; forerun knows another one"):
        vllm.replaced(lambda draft, target: None)


def test_plug_ins_are_found_and_do_nothing_unless_asked(monkeypatch):
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        (entry,) = entry_points(group=group, name="forerun")
        entry.load()()
    for name, module in (("FORERUN_VLLM", vllm), ("FORERUN_SGLANG", sglang)):
        monkeypatch.setenv(name, "pooled")
        with pytest.raises(ValueError, match=f"{name}=pooled; expected block"):
            module.register()


def test_the_plug_in_replaces_the_sampler_of_vllm(monkeypatch):
    module = pytest.importorskip("vllm.v1.sample.rejection_sampler")
    monkeypatch.setenv("FORERUN_VLLM", "block")
    monkeypatch.setattr(module, "rejection_sample", module.rejection_sample)
    vllm.register()
    once = module.rejection_sample
    vllm.register()
    assert module.rejection_sample is once and once.forerun_rule == "block"
    assert fr.check.torch(once, in_vllm, fr.battery(1, SMALL)).lossless


def in_sglang(function, draft, target):
    """Calls the sampler of chains: two sequences, the first certain; the tree's places are numbers
    of all candidates."""
    slots = len(draft.tokens) + 1
    rows, drafted = torch.tensor(target.rows)[None], torch.tensor(draft.rows)[None]
    certain = torch.zeros_like(rows)
    certain[..., 0] = 1.0
    predicts = torch.full((2 * slots,), -1, dtype=torch.int32)
    places = torch.full((2, slots), -1, dtype=torch.int32)
    count = torch.zeros(2, dtype=torch.int32)
    # As SGLang draws them; the numbers of the certain sequence decide nothing.
    coins, last = torch.rand(2, slots, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    function(
        predicts=predicts, accept_index=places, accept_token_num=count,
        candidates=torch.tensor([[0] * slots, [0, *draft.tokens]]),
        retrive_index=torch.arange(2 * slots).reshape(2, slots),
        retrive_next_token=None, retrive_next_sibling=None,
        uniform_samples=coins, uniform_samples_for_final_sampling=last,
        target_probs=torch.cat([certain, rows]), draft_probs=torch.cat([certain[:, :-1], drafted]),
        threshold_single=1.0, threshold_acc=1.0, deterministic=True,
    )  # fmt: skip
    accepted = count.tolist()
    assert accepted[0] == slots - 1 and predicts[:slots].tolist() == [0] * slots
    assert places[1].tolist() == [slots + n if n <= accepted[1] else -1 for n in range(slots)]
    return predicts[slots : slots + accepted[1] + 1].tolist()


def test_block_verification_in_the_layout_of_sglang_is_not_caught():
    torch.manual_seed(5)
    report = fr.check.sampled(
        lambda draft, target: in_sglang(sglang.block_chain_sampling, draft, target), samples=6_000
    )
    assert not report.caught, str(report)


def test_a_mistake_in_the_layout_of_sglang_is_caught():
    """The coins are one place off, so that a test is passed by the number of another."""

    def off_by_one(**given):
        given["uniform_samples"] = given["uniform_samples_for_final_sampling"][:, None].expand_as(
            given["uniform_samples"]
        )
        sglang.block_chain_sampling(**given)

    torch.manual_seed(5)
    report = fr.check.sampled(
        lambda draft, target: in_sglang(off_by_one, draft, target), samples=6_000
    )
    assert report.caught


def test_the_plug_in_hooks_the_sampler_of_sglang(monkeypatch):
    registry = pytest.importorskip("sglang.srt.plugins.hook_registry")
    kernels = pytest.importorskip("sglang.kernels.ops.speculative.reject_sampling")
    before = kernels.chain_speculative_sampling_triton
    monkeypatch.setenv("FORERUN_SGLANG", "block")
    registry.HookRegistry.reset()
    try:
        sglang.register()
        registry.HookRegistry.apply_hooks()
        hooked = kernels.chain_speculative_sampling_triton
        assert hooked is not before and hooked.__wrapped__ is before
        torch.manual_seed(5)
        report = fr.check.sampled(
            lambda draft, target: in_sglang(hooked, draft, target), samples=2_000
        )
        assert not report.caught, str(report)
    finally:
        registry.HookRegistry.reset()
        kernels.chain_speculative_sampling_triton = before
