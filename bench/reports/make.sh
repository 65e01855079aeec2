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

qwen=Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf
smollm2=$models/SmolLM2-135M-Instruct
# The field's prompts, one of each task.
tasks=(--tasks mt_bench,summarization,qa,human_eval,gsm8k --temp 0,1 -n 48 --prompts-per-task 1)
# The controller beside the same drafts at a fixed length.
both=(--spec-adaptive on,off --spec-draft-n-max 4)
# Edits and agents' answers end by themselves.
until_end=(-n 700 -c 4096 --spec-draft-n-max 31 --spec-adaptive on --repeats 1)

measure edits "$qwen" --tasks edit --prompts-per-task 44 --temp 0 "${until_end[@]}" \
    --spec-type edit,prediction,oracle --time-limit "$limit"
measure edits-sampled "$qwen" --tasks edit --prompts-per-task 44 --temp 0.7 "${until_end[@]}" \
    --spec-type edit,prediction --time-limit "$limit"
measure agent "$qwen" --tasks agent --prompts-per-task 100 --temp 0 "${until_end[@]}" \
    --spec-type suffix,suffix-shared --time-limit "$limit"
# Two families: their vocabularies are mapped.
measure qwen "$qwen" "${tasks[@]}" "${both[@]}" --draft "$smollm2.Q4_0.gguf" --time-limit 8m
for format in Q8_0 Q4_0 BF16; do
    measure "widened-${format,,}" "SmolLM2-widened-x16.$format.gguf" "${tasks[@]}" "${both[@]}" \
        --draft "$smollm2.Q4_0.gguf" --time-limit 8m
done
# A model that drafts for itself, whole and with a smaller vocabulary: what trimming costs in acceptance.
if [[ -z $only || $only == trimmed ]]; then
    trimmed=$(mktemp -d)/gemma-3-270m-trimmed.gguf
    "$forerun" trim "$models/gemma-3-270m.Q4_K_M.gguf" "$trimmed" --text ../prompts/*.jsonl
    measure trimmed gemma-3-270m.Q4_K_M.gguf "${tasks[@]}" --spec-adaptive off --spec-draft-n-max 3 \
        --draft "$models/gemma-3-270m.Q4_K_M.gguf" --draft "$trimmed" --time-limit 4m
    rm -r "$(dirname "$trimmed")"
fi
measure gemma-ngram gemma-3-270m.Q4_K_M.gguf "${tasks[@]}" --spec-type ngram --spec-adaptive on,off --time-limit 4m
