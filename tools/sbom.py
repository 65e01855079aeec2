#!/usr/bin/env python3
"""Print what the program contains, as a CycloneDX bill of materials (SBOM): the crates, and llama.cpp within one of them.

Wants `cargo install cargo-cyclonedx`, which writes a file into the folder of every crate of the workspace and knows nothing of C++.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from notices import linked

ROOT = Path(__file__).resolve().parent.parent
BINDING = "llama-cpp-sys-2"


def of_crates() -> dict:
    name = "sbom-of-crates"
    command = ["cargo", "cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5", "--no-build-deps", "--override-filename", name]
    try:
        subprocess.run([*command, "--manifest-path", ROOT / "crates/cli/Cargo.toml"], check=True)
        text = (ROOT / f"crates/cli/{name}.json").read_text()
    finally:
        for written in ROOT.glob(f"crates/*/{name}.json"):
            written.unlink()
    # Where it was made says nothing to a reader.
    return json.loads(text.replace(str(ROOT), ""))


def llama_cpp() -> dict:
    """llama.cpp as the binding brings it; its own parts go by one version, that of ggml."""
    (binding,) = (package for package in linked() if package["name"] == BINDING)
    source = Path(binding["manifest_path"]).parent / "llama.cpp"
    build = (source / "ggml/CMakeLists.txt").read_text()
    version = ".".join(re.findall(r"GGML_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)\)", build))
    return {
        "type": "library",
        "bom-ref": "llama.cpp",
        "name": "llama.cpp",
        "version": f"ggml {version}, as in {BINDING} {binding['version']}",
        "licenses": [{"license": {"id": "MIT"}}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/ggml-org/llama.cpp"}],
    }


def main() -> None:
    if not shutil.which("cargo-cyclonedx"):
        sys.exit("cargo-cyclonedx is missing: cargo install --locked cargo-cyclonedx")
    bill = of_crates()
    (binding,) = (component for component in bill["components"] if component["name"] == BINDING)
    bill["components"].append(llama_cpp())
    for dependency in bill["dependencies"]:
        if dependency["ref"] == binding["bom-ref"]:
            dependency.setdefault("dependsOn", []).append("llama.cpp")
    bill["dependencies"].append({"ref": "llama.cpp"})
    json.dump(bill, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
