#!/usr/bin/env python3
"""Writes what Dynamo's front end wants to know of a model, from its GGUF file: `card.py MODEL.gguf FOLDER`.

The front end makes tokens and prompts itself and wants them as Hugging Face has them: tokenizer.json,
tokenizer_config.json with the chat template, config.json. Byte-level BPE vocabularies only (GPT-2's kind).
Needs `pip install gguf`.
"""

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader

# Kinds of tokens, as GGUF numbers them.
CONTROL, USER_DEFINED = 3, 4
# How text is cut before pairs are merged, by the names GGUF has for it.
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
    "default": [],
}


def value(reader: GGUFReader, key: str) -> Any:
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def tokenizer(reader: GGUFReader) -> dict[str, Any]:
    kind, pre = value(reader, "tokenizer.ggml.model"), value(reader, "tokenizer.ggml.pre") or "default"
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        sys.exit(f"this vocabulary is {kind} ({pre}), and only byte-level BPE as {', '.join(PRE_TOKENIZERS)} can be written")
    tokens, kinds = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    special = [(number, text, sort) for number, (text, sort) in enumerate(zip(tokens, kinds)) if sort in (CONTROL, USER_DEFINED)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, **added, "special": sort == CONTROL} for number, text, sort in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*PRE_TOKENIZERS[pre], byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": value(reader, "tokenizer.ggml.merges"),
        },
    }


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    reader, folder = GGUFReader(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    tokens = value(reader, "tokenizer.ggml.tokens")
    start, end = value(reader, "tokenizer.ggml.bos_token_id"), value(reader, "tokenizer.ggml.eos_token_id")
    files = {
        "tokenizer.json": tokenizer(reader),
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "bos_token": tokens[start],
            "eos_token": tokens[end],
            "add_bos_token": False,
            "chat_template": value(reader, "tokenizer.chat_template"),
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "hidden_size": value(reader, "llama.embedding_length"),
            "num_hidden_layers": value(reader, "llama.block_count"),
            "num_attention_heads": value(reader, "llama.attention.head_count"),
            "num_key_value_heads": value(reader, "llama.attention.head_count_kv"),
            "max_position_embeddings": value(reader, "llama.context_length"),
            "bos_token_id": start,
            "eos_token_id": end,
        },
        "generation_config.json": {"bos_token_id": start, "eos_token_id": end},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
