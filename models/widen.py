#!/usr/bin/env python3
"""Widen the feed-forward layers of a GGUF model of the llama family without changing what it says.

Every feed-forward layer becomes FACTOR times as wide: the rows of its gate and up projections are
repeated, and the down projection of what was added is zero. The widened model gives the
probabilities of the original at the cost of a larger one. Unlike growing (grow.py) it keeps the
number of blocks, and its matrices have the shapes of a real model's. A figure made with it says
"widened".
"""

import argparse
from pathlib import Path

from blocks import Tensor, architecture, write

import gguf
import numpy as np


def widen(source: Path, out: Path, factor: int) -> None:
    """Write the model in `source` with feed-forward layers `factor` times as wide to `out`."""
    if factor < 1:
        raise SystemExit(f"error: a factor of {factor}; expected at least 1")
    reader = gguf.GGUFReader(source)
    key = f"{architecture(reader)}.feed_forward_length"
    changes = {key: reader.fields[key].contents() * factor}
    write(reader, out, f"widened x{factor}", changes, (wider(it, factor) for it in reader.tensors))


def wider(tensor: gguf.ReaderTensor, factor: int) -> Tensor:
    data = tensor.data
    if ".ffn_gate." in tensor.name or ".ffn_up." in tensor.name:
        data = np.concatenate([data] * factor, axis=0)
    elif ".ffn_down." in tensor.name:
        # A row of zero bytes is a row of zeros in every quantisation used here.
        silent = np.zeros((data.shape[0], data.shape[1] * (factor - 1)), data.dtype)
        data = np.concatenate([data, silent], axis=1)
    return Tensor(tensor.name, np.ascontiguousarray(data), tensor.tensor_type)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("factor", type=int, metavar="FACTOR")
    widen(**vars(parser.parse_args()))
