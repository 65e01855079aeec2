"""The texts of steer.py: answers that the target itself samples at temperature 1.

Held out are answers to prompts of bench/prompts. Trained on are answers to other prompts of that folder, and whole
conversations that the target makes up by continuing an empty user's turn.
"""

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from torch_llama import Llama, sample

PROMPTS = Path(__file__).resolve().parent.parent / "bench" / "prompts"
SETS = ("spec_bench", "gsm8k", "human_eval", "greedy_50")
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"

PROMPT_MOST = 160  # Tokens; longer prompts are left out.
ANSWER_LEAST, HELD_MOST, TRAIN_MOST = 8, 64, 96
HELD = 40
BATCH = 64


@dataclass(frozen=True)
class Text:
    """Tokens of a prompt and its answer."""

    prompt_len: int
    tokens: list[int]

    @property
    def answer_len(self) -> int:
        return len(self.tokens) - self.prompt_len


def prompts(tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """Those held out and the others, in the chat template: every prompt once, tasks mixed evenly."""
    tasks: dict[str, list[str]] = {}
    for name in SETS:
        for line in (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            prompt = json.loads(line)
            known = tasks.setdefault(prompt["task"], [])
            if prompt["prompt"] not in known:
                known.append(prompt["prompt"])
    encoded = {task: [encode(tokenizer, SYSTEM + USER + text + ASSISTANT) for text in texts] for task, texts in tasks.items()}
    short = {task: [tokens for tokens in texts if len(tokens) <= PROMPT_MOST] for task, texts in encoded.items()}
    # Round robin over tasks, so that the first so many have all of them.
    longest = max(map(len, short.values()))
    mixed = [texts[index] for index in range(longest) for texts in short.values() if index < len(texts)]
    return mixed[:HELD], mixed[HELD:]


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def held_out(target: Llama, tokenizer: Tokenizer) -> list[Text]:
    starts, _ = prompts(tokenizer)
    return answers(target, starts, HELD_MOST, tokenizer, seed=0)


def training(target: Llama, tokenizer: Tokenizer, tokens_wanted: int) -> list[Text]:
    """At least so many tokens of answers."""
    _, others = prompts(tokenizer)
    opening = encode(tokenizer, SYSTEM + USER)
    texts: list[Text] = []
    began, seed = time.process_time(), 0
    while (made := sum(text.answer_len for text in texts)) < tokens_wanted:
        print(f"{made} tokens to train on, {time.process_time() - began:.0f} s", flush=True)
        seed += 1
        if seed % 2:
            texts += answers(target, sorted(random.Random(seed).choices(others, k=BATCH), key=len), TRAIN_MOST, tokenizer, seed)
        else:
            texts += conversations(target, [opening] * BATCH, tokenizer, seed)
    return texts


def conversations(target: Llama, openings: list[list[int]], tokenizer: Tokenizer, seed: int) -> list[Text]:
    """Texts in which the user's turn is the target's own too, and counts as an answer."""
    end = tokenizer.token_to_id(END)
    written = sample(target, openings, TRAIN_MOST // 2, end, seed)
    closed = [tokens[:-1] if tokens[-1] == end else tokens for tokens in written]
    made = answers(target, [tokens + encode(tokenizer, ASSISTANT) for tokens in closed], TRAIN_MOST // 2, tokenizer, seed)
    return [Text(len(openings[0]), text.tokens) for text in made]


def answers(model: Llama, starts: list[list[int]], most: int, tokenizer: Tokenizer, seed: int) -> list[Text]:
    full = sample(model, starts, most, tokenizer.token_to_id(END), seed)
    texts = [Text(len(start), tokens) for start, tokens in zip(starts, full)]
    return [text for text in texts if text.answer_len >= ANSWER_LEAST]
