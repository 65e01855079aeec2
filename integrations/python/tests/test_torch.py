"""Torch code as it is: enumerated, proved, or caught."""

from functools import partial

import numpy as np
import pytest

import forerun as fr

torch = pytest.importorskip("torch")

from forerun.torch import block_verify  # noqa: E402

SMALL = [(2, 1), (3, 1), (2, 2)]


def test_transformers_is_exact():
    utils = pytest.importorskip("transformers.generation.utils")
    report = fr.check.torch(utils._speculative_sampling, adapt=fr.adapters.transformers)
    print(report)
    assert report.lossless and report.worst_error < 1e-12 and report.models == 44


def test_transformers_lossy_option_is_caught():
    utils = pytest.importorskip("transformers.generation.utils")
    lossy = partial(fr.adapters.transformers, assistant_ensemble_weight=0.5)
    report = fr.check.torch(utils._speculative_sampling, adapt=lossy)
    assert not report.lossless and report.worst_error > 1e-2
    print(report)


def test_the_patch_is_block_verification_and_goes_away():
    utils = pytest.importorskip("transformers.generation.utils")
    before = utils._speculative_sampling
    with fr.patch.transformers(rule="block"):
        patched = utils._speculative_sampling
        assert patched is not before
        models = fr.battery(1, SMALL)
        assert fr.check.torch(patched, adapt=fr.adapters.transformers, models=models).lossless
        # It accepts what block verification accepts, which is the most there is.
        accepted = fr.check.torch(patched, fr.adapters.transformers, models[-11:]).accepted
        most = [fr.optimum(model) for model in models[-11:]]
        assert np.allclose(list(accepted.values()), most, atol=1e-12)
        with pytest.raises(ValueError, match="assistant_ensemble_weight changes the output"):
            patched(torch.tensor([[0]]), None, 1, None, assistant_ensemble_weight=0.5)
    assert utils._speculative_sampling is before


def test_generation_with_an_assistant_goes_through_the_patch(monkeypatch):
    """A real call of ``generate``: two tiny models with random weights, nothing downloaded."""
    transformers = pytest.importorskip("transformers")
    from forerun import patch

    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=128,
        bos_token_id=0, eos_token_id=39, pad_token_id=38,
    )  # fmt: skip
    torch.manual_seed(1)
    large, small = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    accepted = []
    inner = patch._block_sampling

    def counted(*args, **kwargs):
        valid, matches = inner(*args, **kwargs)
        accepted.append(int(matches))
        return valid, matches

    monkeypatch.setattr(patch, "_block_sampling", counted)
    with fr.patch.transformers(rule="block"):
        out = large.generate(
            torch.tensor([[1, 2, 3]]), assistant_model=small, do_sample=True, max_new_tokens=30,
            min_new_tokens=30,
        )  # fmt: skip
    assert out.shape[1] == 33 and len(accepted) > 2 and max(accepted) > 0


def test_our_torch_block_verification_is_exact():
    report = fr.check.torch(block_verify, adapt=fr.adapters.batched)
    print(report)
    assert report.lossless and report.models == 44


def test_our_torch_block_verification_minds_lengths():
    """Rows beyond a sequence's draft are padding, whatever they hold."""

    def padded(function, draft, target):
        tokens = torch.tensor([[*draft.tokens, 0]])
        rows = torch.tensor(np.concatenate([draft.rows, np.full((1, draft.rows.shape[1]), 0.7)]))[None]
        more = torch.tensor(np.concatenate([target.rows, target.rows[:1]]))[None]
        accepted, following = function(tokens, rows, more, lengths=torch.tensor([len(draft.tokens)]))
        return [*draft.tokens[: int(accepted[0])], int(following[0])]

    assert fr.check.torch(block_verify, adapt=padded, models=fr.battery(1, SMALL)).lossless


def rejection_sample(
    draft_token_ids, num_draft_tokens, max_spec_len, cu_num_draft_tokens, draft_probs, target_probs,
    bonus_token_ids, *, mistake=None,
):  # fmt: skip
    """Token verification as vLLM lays it out: uniform numbers for all tokens at once, and the
    recovered tokens by a race of exponential numbers."""
    out = torch.full((len(num_draft_tokens), max_spec_len + 1), -1)
    uniform = torch.rand(len(draft_token_ids), dtype=torch.float64)
    left = (target_probs - draft_probs).clamp(min=0)
    if mistake == "residual by the target":
        left = target_probs.clone()
    if mistake == "residual without its sign":
        left = (target_probs - draft_probs).abs()
    empty = left.sum(-1, keepdim=True) <= 0
    left = torch.where(empty, target_probs, left)
    race = torch.empty_like(left)
    race.exponential_()
    recovered = left.div(race).argmax(dim=-1)
    start = 0
    for n, end in enumerate(cu_num_draft_tokens.tolist()):
        for place in range(start, end):
            token = draft_token_ids[place]
            row = 0 if mistake == "first row for all" else place
            ratio = target_probs[row, token] / draft_probs[place, token]
            if mistake == "uniform reused":
                accepted = bool(uniform[start] < ratio)
            else:
                accepted = bool(uniform[place] < ratio)
            if not accepted:
                out[n, place - start] = recovered[place]
                break
            out[n, place - start] = token
        else:
            out[n, end - start] = bonus_token_ids[n, 0]
        start = end
    return out


def test_the_layout_of_vllm_is_enumerated():
    report = fr.check.torch(rejection_sample, adapt=fr.adapters.vllm)
    assert report.lossless and report.worst_error < 1e-12, str(report)


@pytest.mark.parametrize(
    "mistake",
    ["residual by the target", "residual without its sign", "first row for all", "uniform reused"],
)
def test_mistakes_in_the_layout_of_vllm_are_caught(mistake):
    report = fr.check.torch(partial(rejection_sample, mistake=mistake), adapt=fr.adapters.vllm)
    assert not report.lossless and report.worst_error > 1e-3
    print(mistake, report, sep="\n")


def test_mistakes_in_the_layout_of_transformers_are_caught():
    def clamp_left_out(ids, draft_logits, length, new_logits):
        q, p = draft_logits.softmax(-1)[0], new_logits.softmax(-1)[0]
        tokens = ids[0, -length:]
        for n in range(length):
            if torch.rand(()) > p[n, tokens[n]] / q[n, tokens[n]]:
                following = torch.multinomial((p[n] - q[n]).abs(), 1)
                return torch.cat([tokens[:n], following])[None], n
        return torch.cat([tokens, torch.multinomial(p[-1], 1)])[None], length

    assert not fr.check.torch(clamp_left_out, adapt=fr.adapters.transformers).lossless


def test_mistakes_in_a_batch_are_caught():
    def first_sequence_for_all(tokens, draft_probs, target_probs):
        accepted, _ = block_verify(tokens, draft_probs, target_probs)
        rows = target_probs[torch.arange(len(tokens)), accepted]
        return accepted, torch.multinomial(rows, 1).squeeze(1)

    assert not fr.check.torch(first_sequence_for_all, adapt=fr.adapters.batched).lossless


def test_what_cannot_be_enumerated_is_refused_by_name():
    from forerun._torch_random import NotEnumerable

    def gumbel(draft, target):
        return 0, int((torch.tensor(target.rows[0]).log() - (-torch.rand(target.rows.shape[1]).log()).log()).argmax())

    def normal(draft, target):
        return 0, int(torch.randn(2).argmax())

    for wrong, name in ((gumbel, "log"), (normal, "randn")):
        with pytest.raises(NotEnumerable, match=f"{name}.* not enumerable"):
            fr.check.torch(None, adapt=lambda _, draft, target: wrong(draft, target))


def test_torch_rows_are_not_copied():
    rng = np.random.default_rng(4)
    tokens = [[1, 2]] * 3
    draft = torch.tensor(rng.dirichlet(np.ones(30), (3, 2)), dtype=torch.float32)
    target = torch.tensor(rng.normal(size=(3, 3, 30)), dtype=torch.bfloat16)
    from forerun._rows import as_array

    array, kind = as_array(target)
    assert kind == "bf16" and array.__array_interface__["data"][0] == target.data_ptr()
    one = fr.verify_batch(tokens, draft, target, seeds=[1, 2, 3])
    two = fr.verify_batch(tokens, draft.numpy(), target.float().numpy(), seeds=[1, 2, 3])
    assert (one.padded() == two.padded()).all()
