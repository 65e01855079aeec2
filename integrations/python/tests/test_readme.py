"""The README's loop runs, and does what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

import forerun as fr

README = Path(__file__).parent.parent / "README.md"


def generate():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "def generate(" in block]
    assert len(block.splitlines()) <= 30
    scope: dict = {}
    exec(block, scope)
    return scope["generate"]


def model(seed, noise=0.0):
    """Logits that depend on the last two tokens."""

    def logits(tokens):
        ends = [tuple(tokens[max(0, n - 1) : n + 1]) for n in range(len(tokens))]
        rows = [np.random.default_rng([seed, *end]).normal(size=5) for end in ends]
        return 2.0 * np.array(rows) + noise * np.random.default_rng(len(tokens)).normal(size=5)

    return logits


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_loop_of_the_readme_is_speculative_decoding(noise, monkeypatch):
    accepted = []
    verify = fr.verify

    def counted(*args, **options):
        verdict = verify(*args, **options)
        accepted.append(verdict.accepted)
        return verdict

    monkeypatch.setattr(fr, "verify", counted)
    text = generate()([1, 2], model(3, noise), model(3), 200, seed=1)
    assert text[:2] == [1, 2] and 202 <= len(text) < 207 and set(text) <= set(range(5))
    # A drafter that is the target is always right, if its rows meet the target's; another is not.
    assert set(accepted) == {4} if noise == 0.0 else {0, 4} <= set(accepted)
