"""Write a GGUF model again with changes: what grow.py, prune.py and widen.py share.

Keys and tensors are copied as they are, except what changes and the model's name. Nothing is
requantised. For models of the llama family, whose blocks add to the residual stream by
`attn_output` and `ffn_down` alone.
"""

import os
import re
from collections.abc import Callable, Iterable
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


class Tensor(NamedTuple):
    """One tensor of the file to write."""

    name: str
    data: np.ndarray
    kind: gguf.GGMLQuantizationType


def rewrite(source: Path, out: Path, label: str, choose: Callable[[int], list[Block]]) -> None:
    """Write to `out` the model in `source` with the blocks that `choose` names, given their count."""
    reader = gguf.GGUFReader(source)
    key = f"{architecture(reader)}.block_count"
    blocks = choose(reader.fields[key].contents())
    tensors = (
        Tensor(name, np.zeros_like(tensor.data) if silent else tensor.data, tensor.tensor_type)
        for name, tensor, silent in placed(reader.tensors, blocks)
    )
    write(reader, out, label, {key: len(blocks)}, tensors)


def architecture(reader: gguf.GGUFReader) -> str:
    return reader.fields["general.architecture"].contents()


def write(
    reader: gguf.GGUFReader,
    out: Path,
    label: str,
    changes: dict[str, int],
    tensors: Iterable[Tensor],
) -> None:
    """Write to `out` the model in `reader` with other values of some keys and these tensors.

    `out` appears when it is complete: until then the file is called `out` plus `.part`.
    """
    part = out.with_name(out.name + ".part")
    writer = gguf.GGUFWriter(part, architecture(reader))
    writer.data_alignment = reader.alignment
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # The writer has said these.
        value = changes.get(name, field.contents())
        if name == "general.name":
            value = f"{value} {label}"
        kind, *inner = field.types
        writer.add_key_value(name, value, kind, inner[-1] if inner else None)
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.kind)
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
