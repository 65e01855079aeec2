#!/usr/bin/env python3
"""Make a drafter out of a GGUF model of the llama family by dropping blocks.

The first HEAD and the last TAIL blocks stay. Nothing is trained afterwards, so the drafter is
cheaper and worse, the more so the fewer blocks stay. A figure made with it says "pruned".
"""

import argparse
from pathlib import Path

from blocks import Block, rewrite


def prune(source: Path, out: Path, head: int, tail: int) -> None:
    """Write the first `head` and the last `tail` blocks of the model in `source` to `out`."""

    def fewer(count: int) -> list[Block]:
        if head < 0 or tail < 0 or not 0 < head + tail <= count:
            raise SystemExit(f"error: {head}+{tail} blocks; expected 1 to {count} in all")
        return [Block(index) for index in (*range(head), *range(count - tail, count))]

    rewrite(source, out, f"pruned {head}+{tail}", fewer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="IN.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("head", type=int, metavar="HEAD")
    parser.add_argument("tail", type=int, metavar="TAIL")
    prune(**vars(parser.parse_args()))
