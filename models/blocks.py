"""Rewrite the blocks of a GGUF model: what grow.py and prune.py share.

Keys and tensors are copied as they are; the list of blocks, their count and the model's name
change. Nothing is requantised. For models of the llama family, whose blocks add to the residual
stream by `attn_output` and `ffn_down` alone.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

try:
    import gguf
    import numpy as np
except ImportError as error:
    raise SystemExit(f"error: {error}; install both with: pip install gguf numpy") from error

# Tensors by which a block adds to the residual stream, biases included.
OUTPUTS = ("attn_output.", "ffn_down.")


class Block(NamedTuple):
    """One block of the file to write."""

    source: int
    """Index of the block it is copied from."""
    silent: bool = False
    """Whether its output projections are zero: it adds nothing and costs as much as its source."""


def rewrite(source: Path, out: Path, label: str, choose: Callable[[int], list[Block]]) -> None:
    """Write to `out` the model in `source` with the blocks that `choose` names, given their count.

    `out` appears when it is complete: until then the file is called `out` plus `.part`.
    """
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    blocks = choose(reader.fields[f"{arch}.block_count"].contents())
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, arch)
    writer.data_alignment = reader.alignment
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # The writer has said these.
        value = field.contents()
        if name == f"{arch}.block_count":
            value = len(blocks)
        if name == "general.name":
            value = f"{value} {label}"
        kind, *inner = field.types
        writer.add_key_value(name, value, kind, inner[-1] if inner else None)
    for name, tensor, silent in placed(reader.tensors, blocks):
        data = np.zeros(tensor.data.shape, tensor.data.dtype) if silent else tensor.data
        writer.add_tensor(name, data, raw_dtype=tensor.tensor_type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def placed(
    tensors: list[gguf.ReaderTensor], blocks: list[Block]
) -> list[tuple[str, gguf.ReaderTensor, bool]]:
    """The tensors to write, in the order of the source: name, what to copy, whether as zeros."""
    plan = []
    for tensor in tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name)
        if not match:
            plan.append((tensor.name, tensor, False))
            continue
        index, rest = int(match[1]), match[2]
        for place, block in enumerate(blocks):
            if block.source == index:
                silent = block.silent and rest.startswith(OUTPUTS)
                plan.append((f"blk.{place}.{rest}", tensor, silent))
    return plan
