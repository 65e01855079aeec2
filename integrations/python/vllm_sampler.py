"""The torch sampler of vLLM's first engine (to 0.9), from its wheel, as it is.

Its two files are imported under their own names; the rest of vLLM, which wants a GPU build, is
stood in for by what they ask of it: a logger, the settings' one flag and the platform's name.
"""

from __future__ import annotations

import logging
import sys
import types
import zipfile
from collections.abc import Callable
from typing import Any

import torch

import forerun as fr


def sampler(wheel: str) -> Callable[..., Any]:
    """``RejectionSampler.forward`` of a wheel."""
    # Compiled code cannot be answered; the same code runs as it is written.
    torch.compiler.set_stance("force_eager")
    platform = types.SimpleNamespace(simple_compile_backend="eager", device_type="cpu")
    stand_ins = {
        "vllm": {},
        "vllm.envs": {"VLLM_USE_FLASHINFER_SAMPLER": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.model_executor": {},
        "vllm.model_executor.layers": {},
    }
    for name, values in stand_ins.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(values)
        sys.modules[name] = module
    with zipfile.ZipFile(wheel) as files:
        for name in ("spec_decode_base_sampler", "rejection_sampler"):
            source = files.read(f"vllm/model_executor/layers/{name}.py").decode()
            module = types.ModuleType(f"vllm.model_executor.layers.{name}")
            sys.modules[module.__name__] = module
            exec(compile(source, f"{name}.py", "exec"), vars(module))
    sampler = sys.modules["vllm.model_executor.layers.rejection_sampler"].RejectionSampler(
        strict_mode=False, use_flashinfer=False
    )
    sampler.init_tensors("cpu", "cpu")
    return sampler.forward


def adapt(function: Callable[..., Any], draft: fr.DraftCase, target: fr.TargetCase) -> list[int]:
    """Calls it as the engine does: the bonus token is drawn by the target before."""
    rows = torch.tensor(target.rows)[None]
    bonus = torch.multinomial(rows[0, -1:], 1)
    drafted = torch.tensor([draft.tokens])
    out = function(rows, bonus, torch.tensor(draft.rows)[None], drafted)
    return [int(token) for token in out[0].tolist() if token >= 0]
