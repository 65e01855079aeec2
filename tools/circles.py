#!/usr/bin/env python3
"""Import circles: modules of a crate that use each other, directly or around a corner. There must be none.

A module is a file. It uses what its `use crate::…`, `use super::…` and paths `crate::…` name. A file may use the files
below it (`round.rs` those in `round/`) and they may use it: they are one thing in several files. Tests do not count.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Module = tuple[str, ...]


def modules(crate: Path) -> dict[Module, str]:
    """The crate's modules with their code, without tests and comments."""
    found = {}
    source = crate / "src"
    for path in sorted(source.rglob("*.rs")):
        parts = path.relative_to(source).with_suffix("").parts
        if parts[-1] in {"tests", "simulation"} or "tests" in parts:
            continue
        if parts in {("lib",), ("main",)}:
            continue
        text = path.read_text(encoding="utf-8")
        text = re.split(r"#\[cfg\(test\)\]\n(?:pub\(crate\) )?mod \w+ \{", text)[0]
        found[parts] = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    return found


def trees(text: str) -> Iterator[list[str]]:
    """Paths that a use tree names: `a::{b, c::d}` are `a::b` and `a::c::d`."""
    head, brace, rest = text.partition("{")
    prefix = [part.strip() for part in head.split("::") if part.strip()]
    if not brace:
        yield [part.split(" as ")[0].strip() for part in prefix]
        return
    depth, item = 0, ""
    for char in rest:
        if char == "}" and depth == 0:
            break
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield from ([*prefix, *tree] for tree in trees(item))
            item = ""
        else:
            item += char
    if item.strip():
        yield from ([*prefix, *tree] for tree in trees(item))


def used(own: Module, code: str, known: dict[Module, str]) -> set[Module]:
    """The modules that a module uses."""
    paths = [tree for use in re.findall(r"\buse ([^;]+);", code) for tree in trees(use)]
    paths += [path.split("::") for path in re.findall(r"\b((?:crate|super)(?:::\w+)+)", code)]
    found = set()
    for path in paths:
        base: Module
        if path[0] == "crate":
            base, path = (), path[1:]
        elif path[0] == "super":
            base = own
            while path and path[0] == "super":
                base, path = base[:-1], path[1:]
        else:
            base = own
        # The longest beginning that is a module.
        for end in range(len(path), 0, -1):
            if (*base, *path[:end]) in known:
                found.add((*base, *path[:end]))
                break
        else:
            if base in known:
                found.add(base)
    return found




def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def main() -> int:
    failed = False
    for crate in sorted((ROOT / "crates").iterdir()):
        known = modules(crate)
        # Between the files of the crate, and within each folder.
        for level in sorted({module[:depth] for module in known for depth in range(len(module))}):
            graph: dict[str, set[str]] = {}
            for module, code in known.items():
                if module[: len(level)] != level or len(module) == len(level):
                    continue
                name = module[len(level)]
                for other in used(module, code, known):
                    if other[: len(level)] == level and len(other) > len(level) and other[len(level)] != name:
                        graph.setdefault(name, set()).add(other[len(level)])
            for group in circles(graph):
                failed = True
                where = "/".join(("crates", crate.name, "src", *level))
                edges = [f"{one} → {other}" for one in group for other in sorted(graph[one]) if other in group]
                print(f"{where}: {', '.join(edges)}")
    print("there are import circles" if failed else "no import circles")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
