#!/usr/bin/env bash
# The reports of all pairs of models/README.md: bench/reports/*.json and the same as pages.
# The first argument is the binary, the second how long the largest run may take, the third the one report to make,
# unless all are; FORERUN_MODELS is the folder of `just models --all`. Wants an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
forerun=$1
limit=$2
only=${3:-}
models=${FORERUN_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/forerun/models}

# The name of the report, the target, then further flags.
measure() {
    local name=$1 target=$2
    shift 2
    [[ -z $only || $only == "$name" ]] || return 0
    echo "== $name"
    "$forerun" bench -m "$models/$target" --out "$name.html" --force "$@"
    rm -f "$name.jsonl"
}

# The field's prompts, one of each task.
tasks=(--tasks mt_bench,summarization,qa,human_eval,gsm8k --temp 0,1 -n 48 --prompts-per-task 1)

draft() {
    printf -- '--draft %s ' "${@/#/$models/}"
}

# shellcheck disable=SC2046  # flags, one word each: paths of models have no spaces
{
    measure grown SmolLM2-grown-x8.Q8_0.gguf "${tasks[@]}" --verify block,token,pooled,gbv,specinfer --spec-draft-paths 2 \
        --spec-draft-n-max 4 --time-limit "$limit" \
        $(draft SmolLM2-135M-Instruct.Q4_0.gguf SmolLM2-pruned-14+13.gguf SmolLM2-pruned-12+12.gguf)
    measure grown-aligned SmolLM2-grown-x8.Q8_0.gguf "${tasks[@]}" --verify block --spec-draft-n-max 4 --time-limit 7m \
        --spec-adaptive on,off $(draft SmolLM2-135M-Instruct.Q4_0.gguf SmolLM2-135M-Instruct.Q5_0.gguf)
    measure grown-weak SmolLM2-grown-x8.Q8_0.gguf "${tasks[@]}" --verify block --spec-draft-n-max 4 --time-limit 6m \
        --spec-adaptive on,off $(draft SmolLM2-pruned-10+10.gguf SmolLM2-pruned-8+0.gguf)
}
measure smollm2-ngram SmolLM2-135M-Instruct.Q8_0.gguf "${tasks[@]}" --spec-type ngram --spec-adaptive on,off --time-limit 4m
measure gemma-ngram gemma-3-270m.Q4_K_M.gguf "${tasks[@]}" --spec-type ngram --spec-adaptive on,off --time-limit 4m
# Edits of code end by themselves.
measure edits Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf --tasks edit --prompts-per-task 44 --temp 0 -n 700 -c 2048 \
    --spec-type edit,prediction,oracle --spec-draft-n-max 31 --spec-adaptive on --repeats 1 --time-limit "$limit"
