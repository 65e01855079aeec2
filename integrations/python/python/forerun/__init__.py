"""Lossless verification rules for speculative decoding, and a kit that proves anyone's.

A drafter proposes the next tokens, the target scores them all in one pass, and a *rule* accepts as
many as it may, so that the output keeps the target's own distribution::

    import forerun as fr

    verdict = fr.verify(tokens, draft_probs, target_logits, rule="block", seed=7)
    text += verdict.tokens  # the accepted ones and one more

To prove a rule of your own, put its randomness through ``chance``::

    @fr.rule(scheme="path")
    def mine(draft, target, chance):
        for n, token in enumerate(draft.tokens):
            if not chance.coin(target.rows[n][token] / draft.rows[n][token]):
                return n, chance.pick((target.rows[n] - draft.rows[n]).clip(min=0))
        return len(draft.tokens), chance.pick(target.rows[-1])

    fr.assert_lossless(mine)
"""

from . import adapters, patch
from ._chance import Chance, outcomes
from ._check import (
    Check,
    Counterexample,
    DraftCase,
    Finding,
    NotLossless,
    Report,
    TargetCase,
    assert_lossless,
    check,
    compiled,
    examine,
    rule,
)
from ._draft import Draft, DraftBuilder
from ._model import Model, battery, optimum
from ._native import (
    BatchError,
    BlockError,
    Budget,
    DraftError,
    ForerunError,
    Near,
    PathError,
    PromiseError,
    Refusal,
    Row,
    RowError,
    lossy_rules,
    path_rules,
    rules,
)
from ._noise import Noise
from ._promise import Promise, Spend, Spending, Spent
from ._rows import Sparse, row
from ._sampled import SampledReport
from ._verify import Verdict, Verdicts, verify, verify_batch

__all__ = [
    "BatchError",
    "BlockError",
    "Budget",
    "Chance",
    "Check",
    "Counterexample",
    "Draft",
    "DraftBuilder",
    "DraftCase",
    "DraftError",
    "Finding",
    "ForerunError",
    "Model",
    "Near",
    "Noise",
    "NotLossless",
    "PathError",
    "Promise",
    "PromiseError",
    "Refusal",
    "Report",
    "Row",
    "RowError",
    "SampledReport",
    "Sparse",
    "Spend",
    "Spending",
    "Spent",
    "TargetCase",
    "Verdict",
    "Verdicts",
    "adapters",
    "assert_lossless",
    "battery",
    "check",
    "compiled",
    "examine",
    "lossy_rules",
    "optimum",
    "outcomes",
    "patch",
    "path_rules",
    "row",
    "rule",
    "rules",
    "verify",
    "verify_batch",
]
