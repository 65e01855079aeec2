#!/usr/bin/env bash
# Builds the wheel, installs it in an empty environment, runs all its tests there, checks its types and runs its
# notebook. With `torch` as the argument, torch (several gigabytes) and transformers are installed too, their tests
# run, and CONFORMANCE.md is made again. KIT_VENV names an environment to keep instead of an empty one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")/kit
export CARGO_TARGET_DIR=$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${KIT_VENV:-$work/venv}
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
pip() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

cargo fmt --check
cargo clippy --locked --quiet --release --all-targets -- -D warnings
pip 'maturin>=1.9,<2' 'numpy>=1.26' 'pytest>=8' 'mypy>=1.11' pyright==1.1.414 --requirement examples/requirements.txt
"$venv/bin/maturin" build --quiet --release --locked --out "$work/wheels"
pip --force-reinstall --no-deps "$work"/wheels/*.whl
if [[ ${1:-} == torch ]]; then
    pip torch
    pip --no-deps transformers
    pip huggingface_hub regex pyyaml tqdm packaging safetensors tokenizers requests filelock
fi
# The verdicts that Python must meet, made by Rust alone.
cargo run --quiet --release --locked --example cases -- 10000 1 >"$work/cases"
(cd "$work" && "$venv/bin/mypy" --config-file "$OLDPWD/pyproject.toml")
"$venv/bin/python" -m mypy.stubtest --mypy-config-file pyproject.toml forerun._native
PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$venv/bin/pyright" --project pyproject.toml --pythonpath "$venv/bin/python"
# From elsewhere, so that the installed package is tested and not the folder here.
tests=$PWD/tests config=$PWD/pyproject.toml
(cd "$work" && FORERUN_CASES=$work/cases "$venv/bin/python" -m pytest --quiet -c "$config" --rootdir "$work" \
    -p no:cacheprovider "$tests")
# The notebook runs from its first cell to its last; what is committed of it is not touched.
(cd "$work" && "$venv/bin/jupyter-execute" --timeout 300 "${tests%/*}/examples/compare_rules.ipynb")
if [[ ${1:-} == torch ]]; then
    "$venv/bin/python" conformance.py ../../CONFORMANCE.md
fi
