#!/usr/bin/env python3
"""Print the licences of everything that is linked into the program: the crates', and llama.cpp's within one of them."""

import json
import re
import subprocess
from pathlib import Path

LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE)", re.IGNORECASE)


def linked() -> list[dict]:
    """The packages that the program is built of, without those for building and testing it alone."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    host = re.search(r"host: (\S+)", subprocess.check_output(["rustc", "-vV"], text=True))
    command += ["--filter-platform", host.group(1)]
    found = json.loads(subprocess.check_output(command, text=True))
    packages = {package["id"]: package for package in found["packages"]}
    needs = {
        node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        for node in found["resolve"]["nodes"]
    }
    open_ends = [package["id"] for package in found["packages"] if package["name"] == "forerun"]
    seen = set(open_ends)
    while open_ends:
        new = [need for need in needs[open_ends.pop()] if need not in seen]
        seen.update(new)
        open_ends += new
    return sorted((packages[one] for one in seen if packages[one]["source"]), key=lambda package: package["name"])


def texts(folder: Path) -> list[str]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and LICENCE.match(path.name))
    return [path.read_text(errors="replace").strip() for path in files]


def main() -> None:
    # Most texts are the same but for a name: each is printed once, under all who use it.
    users: dict[str, list[str]] = {}
    for package in linked():
        folder = Path(package["manifest_path"]).parent
        title = f"{package['name']} {package['version']} ({package['license'] or 'see text'})"
        for text in texts(folder) or [f"Licence by its manifest: {package['license']}. See {package['repository']}"]:
            users.setdefault(text, []).append(title)
        engine = folder / "llama.cpp"
        for place in (engine, engine / "licenses"):
            for text in texts(place) if place.is_dir() else []:
                users.setdefault(text, []).append("llama.cpp, and what it contains")
    for text, titles in users.items():
        print("\n".join(dict.fromkeys(titles)), text, "=" * 80, sep="\n\n")


if __name__ == "__main__":
    main()
