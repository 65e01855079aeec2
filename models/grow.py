#!/usr/bin/env python3
"""Grow a GGUF model of the llama family in depth without changing what it says.

After every block, COPIES - 1 silent ones follow: copies whose output projections are zero. They add
nothing to the residual stream and cost as much as any block. The grown model gives the
probabilities of the original and runs like one COPIES times as deep: a target for measurements
where no large weights can be had. A figure made with it says "grown".
"""

import argparse
from pathlib import Path

from blocks import Block, rewrite


def grow(source: Path, out: Path, copies: int) -> None:
    """Write the model in `source`, `copies` times as deep, to `out`."""

    def deeper(count: int) -> list[Block]:
        return [Block(index, copy > 0) for index in range(count) for copy in range(copies)]

    if copies < 1:
        raise SystemExit(f"error: {copies} copies; expected at least 1")
    rewrite(source, out, f"grown x{copies}", deeper)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("copies", type=int, metavar="COPIES")
    grow(**vars(parser.parse_args()))
