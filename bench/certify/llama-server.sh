#!/usr/bin/env bash
# `forerun certify` on llama.cpp's server with speculation, beside the same server without: writes
# bench/certify/llama-server.html and .json. The first argument is our binary, LLAMA_SERVER theirs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
forerun=$1
models=${FORERUN_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/forerun/models}
spec_port=18301 plain_port=18302
trap 'kill $(jobs -p) 2>/dev/null' EXIT

serve() {
    "${LLAMA_SERVER:-llama-server}" -m "$models/SmolLM2-135M-Instruct.Q8_0.gguf" --poll 0 -c 2048 -np 4 -t 1 -fa on \
        "$@" >/dev/null 2>&1 &
}

serve --port "$spec_port" -md "$models/SmolLM2-pruned-14+13.gguf" --spec-type draft-simple --spec-draft-n-max 4 --spec-draft-p-min 0
serve --port "$plain_port"
for port in "$spec_port" "$plain_port"; do
    until curl -fsS "http://127.0.0.1:$port/health" >/dev/null 2>&1; do sleep 0.5; done
done
# Whatever the verdict, it is the result.
"$forerun" certify --url "http://127.0.0.1:$spec_port" --plain-url "http://127.0.0.1:$plain_port" --temp 1 --top-k 0 --top-p 1 \
    --min-p 0 --power 0.1 --time-limit 20m --pairs 3000 -n 16 --out llama-server.html || [[ $? -eq 1 || $? -eq 3 ]]
