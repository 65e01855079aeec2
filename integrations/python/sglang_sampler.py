"""SGLang's kernel for chains from its wheel, for `conformance.py`: in Triton's interpreter, which needs no GPU, and without the
rest of SGLang.
"""

from __future__ import annotations

import importlib.util
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import forerun as fr


def sampler(wheel: str) -> Callable[..., None]:
    """``chain_speculative_sampling_triton`` of a wheel."""
    # Triton reads the source of a kernel from its file.
    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(wheel) as files:
        name = files.extract("sglang/kernels/ops/speculative/reject_sampling.py", folder)
    spec = importlib.util.spec_from_file_location("reject_sampling", name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.chain_speculative_sampling_triton


def adapt(function: Callable[..., None], draft: fr.DraftCase, target: fr.TargetCase) -> list[int]:
    """Calls it as the engine does, with uniform numbers that are drawn before."""
    slots = len(draft.tokens) + 1
    predicts = torch.full((slots,), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    function(
        predicts=predicts, accept_index=torch.full((1, slots), -1, dtype=torch.int32), accept_token_num=count,
        candidates=torch.tensor([[0, *draft.tokens]]), retrive_index=torch.arange(slots)[None],
        retrive_next_token=None, retrive_next_sibling=None,
        uniform_samples=torch.rand(1, slots), uniform_samples_for_final_sampling=torch.rand(1),
        target_probs=torch.tensor(target.rows, dtype=torch.float32)[None],
        draft_probs=torch.tensor(draft.rows, dtype=torch.float32)[None],
        threshold_single=1.0, threshold_acc=1.0, deterministic=True,
    )  # fmt: skip
    return predicts[: int(count) + 1].tolist()
