#!/usr/bin/env python3
"""What a draft model gains if a vector computed from the target's hidden state is added to its residual stream.

The target is SmolLM2-135M-Instruct, the draft model its first ten and last ten blocks, as prune.py cuts them. After
every round the target has a hidden state for the last verified position: the one before the newest token, which the
target has drawn but not read. A linear map of that state is added to the residual stream of the draft model from the cut
on, the same for all tokens of the round (Berdoz et al., arXiv 2511.09844). In llama.cpp that is a control vector.

Since the draft model begins with blocks of the target, only the blocks after the cut are run here, on the target's
own stream. Texts, states and trained weights are kept in a work folder; delete it to begin again. Writes
bench/decode/steering.md.
"""

import argparse
import copy
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import steer_texts
import torch
from get import BASE, default_folder
from steer_report import Judged, Variant, processor, report
from steer_texts import Text
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch_llama import FORBIDDEN, Cache, Llama, load

Made = TypeVar("Made")

HEAD, TAIL = 10, 10  # Blocks that the draft model keeps of the target's.
DEPTH = 4  # Tokens drafted in a round.
RANK = 256  # Of the trained map.
VOCAB = 8192  # Tokens of the loss, the most frequent ones; judged is on all.
BATCH = 800  # Tokens of a step of training, prompts included.


@dataclass(frozen=True)
class Taught:
    """A text with the target's residual stream before the cut, after it, and at the end."""

    text: Text
    stream: Tensor

    def __len__(self) -> int:
        return len(self.text.tokens)


@torch.no_grad()
def taught(target: Llama, texts: list[Text]) -> list[Taught]:
    found = []
    for text in texts:
        stream = target(torch.tensor([text.tokens]))
        at = HEAD, target.shape.blocks - TAIL, target.shape.blocks
        found.append(Taught(text, torch.stack([stream[index][0] for index in at])))
    return found


# --- the draft model and what steers it ---


class Drafter(nn.Module):
    """The blocks after the cut. Input is the stream before it; `offsets[i]` is added before block i, the last at the end."""

    def __init__(self, target: Llama) -> None:
        super().__init__()
        self.target = [target]  # In a list, so that its weights are not the drafter's.
        self.blk = nn.ModuleList(copy.deepcopy(block).float() for block in target.blk[-TAIL:])

    def forward(
        self, stream: Tensor, positions: Tensor, offsets: Tensor, mask: Tensor | None = None, caches: list[Cache] | None = None
    ) -> Tensor:
        turn = self.target[0].turn(positions)
        for index, block in enumerate(self.blk):
            stream = block(stream + offsets[index], positions, turn, mask, caches[index] if caches else None)
        return stream + offsets[-1]


class Steering(nn.Module):
    """Offsets for the stream: a constant, and with a rank also a linear map of features."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(TAIL + 1, width))
        self.read = nn.Parameter(torch.zeros(3 * width, rank))
        self.write = nn.Parameter(torch.zeros(TAIL + 1, rank, width))

    def forward(self, features: Tensor) -> Tensor:
        constant = self.constant[:, None, None]
        if not self.read.shape[1]:
            return constant.expand(-1, *features.shape[:2], -1)
        return constant + torch.einsum("btr,irw->ibtw", features @ self.read, self.write)


class Features:
    """What a map sees of the target's stream: three layers, each of norm 1 by component, less the mean of training."""

    def __init__(self, data: list[Taught]) -> None:
        self.mean: Tensor | float = 0.0
        self.mean = torch.cat([self(it.stream[:, it.text.prompt_len :]) for it in data]).mean(0)

    def __call__(self, stream: Tensor) -> Tensor:
        stream = stream.float()
        normed = stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + 1e-6)
        return normed.movedim(0, -2).flatten(-2) - self.mean


# --- training ---


def round_starts(text: Text, chance: random.Random) -> list[int]:
    """For every position of the answer the first one of its round, with rounds of random lengths."""
    starts: list[int] = []
    while len(starts) < text.answer_len:
        begin = text.prompt_len + len(starts)
        starts += [begin] * chance.randint(1, DEPTH)
    return starts[: text.answer_len]


def steered_features(it: Taught, features: Features, chance: random.Random) -> Tensor:
    """By position: the state of the last verified one. Zero in the prompt, which is read without steering."""
    before = torch.tensor(round_starts(it.text, chance)) - 1
    prompt = torch.zeros(it.text.prompt_len, features(it.stream[:, :1]).shape[-1])
    return torch.cat([prompt, features(it.stream)[before]])


def least_squares(data: list[Taught], features: Features, width: int) -> tuple[Steering, Steering]:
    """A constant, and a map of full rank, that best make up for the blocks cut out; the ridge is found on a tenth."""
    chance = random.Random(1)
    inputs, outputs = [], []
    for it in data:
        inputs.append(steered_features(it, features, chance)[it.text.prompt_len :])
        outputs.append((it.stream[1] - it.stream[0]).float()[it.text.prompt_len :])
    x, y = torch.cat(inputs), torch.cat(outputs)
    mean = y.mean(0)
    cut = len(x) * 9 // 10
    square, cross = x[:cut].T @ x[:cut], x[:cut].T @ (y[:cut] - mean)
    unexplained, best = math.inf, cross
    for ridge in (0.001, 0.01, 0.1, 1.0):
        solved = torch.linalg.solve(square + ridge * cut * torch.eye(len(square)), cross)
        error = ((y[cut:] - mean - x[cut:] @ solved).square().sum() / (y[cut:] - mean).square().sum()).item()
        print(f"least squares, ridge {ridge}: {error:.3f} of the variance unexplained", flush=True)
        if error < unexplained:
            unexplained, best = error, solved
    constant, mapped = Steering(width, 0), Steering(width, width)
    constant.constant.data[0] = mapped.constant.data[0] = mean
    left, size, right = torch.linalg.svd(best, full_matrices=False)
    mapped.read.data, mapped.write.data[0] = left * size.sqrt(), size.sqrt()[:, None] * right
    return constant, mapped


def batches(data: list[Taught], chance: random.Random) -> list[list[Taught]]:
    """Of about the same length each, in random order."""
    ordered = sorted(data, key=lambda it: (len(it), chance.random()))
    made: list[list[Taught]] = [[]]
    for it in ordered:
        if made[-1] and len(it) * (len(made[-1]) + 1) > BATCH:
            made.append([])
        made[-1].append(it)
    chance.shuffle(made)
    return made


def padded(parts: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(parts, batch_first=True)


@dataclass(frozen=True)
class Course:
    """What all training shares."""

    data: list[Taught]
    features: Features
    target: Llama
    tokens: Tensor

    def loss(self, batch: list[Taught], drafter: Drafter, steering: Steering, chance: random.Random) -> tuple[Tensor, int]:
        """Cross entropy of the draft row with the target's row, at every position of the answers, and how many those are."""
        seen = padded([steered_features(it, self.features, chance) for it in batch])
        stream = padded([it.stream[0].float() for it in batch])
        answer = padded([torch.arange(len(it)) >= it.text.prompt_len for it in batch])
        wanted = torch.cat([it.stream[2].float()[it.text.prompt_len :] for it in batch])
        positions = torch.arange(stream.shape[1]).expand(len(batch), -1)
        weights = self.target.token_embd.weight[self.tokens]
        with torch.autocast("cpu", torch.bfloat16):
            drafted = drafter(stream, positions, steering(seen))[answer]
            row = nn.functional.linear(self.target.output_norm(drafted), weights).float().log_softmax(-1)
        with torch.no_grad():
            target_row = nn.functional.linear(self.target.output_norm(wanted), weights).softmax(-1)
        return -(target_row * row).sum(-1).mean(), len(row)


def train(course: Course, drafter: Drafter, steering: Steering, tokens: int, distil: bool) -> float:
    """Trains the steering, and with `distil` the drafter's blocks as well, on so many tokens; returns CPU seconds."""
    chance = random.Random(2)
    drafter.requires_grad_(distil)
    groups = [{"params": [it for it in steering.parameters() if it.numel()], "rate": 1e-3}]
    if distil:
        groups.append({"params": list(drafter.parameters()), "rate": 5e-4})
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.01)
    began, seen, step, recent = time.process_time(), 0, 0, 0.0
    while seen < tokens:
        for batch in batches(course.data, chance):
            if seen >= tokens:
                break
            for group in optimiser.param_groups:
                group["lr"] = group["rate"] * min(1, (step + 1) / 10) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * seen / tokens)))
            loss, rows = course.loss(batch, drafter, steering, chance)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([it for group in groups for it in group["params"]], 1.0)
            optimiser.step()
            seen, step = seen + rows, step + 1
            recent = loss.item() if step == 1 else 0.95 * recent + 0.05 * loss.item()
            if step % 20 == 0:
                print(f"  {seen} tokens, {time.process_time() - began:.0f} s, loss {recent:.3f}", flush=True)
    drafter.requires_grad_(False)
    return time.process_time() - began


# --- judging ---


class Held:
    """Held-out texts as one padded batch, with the target's rows for their answers: logarithms of probabilities."""

    def __init__(self, target: Llama, data: list[Taught]) -> None:
        self.target = target
        self.prompts = torch.tensor([it.text.prompt_len for it in data])
        self.lengths = torch.tensor([len(it) for it in data])
        self.tokens = padded([torch.tensor(it.text.tokens) for it in data])
        self.stream = torch.stack([padded([it.stream[layer].float() for it in data]) for layer in range(3)])
        self.rows = padded([target.logits(it.stream[2][it.text.prompt_len :]).log_softmax(-1) for it in data])

    def __len__(self) -> int:
        return len(self.lengths)


@torch.no_grad()
@torch.autocast("cpu", torch.bfloat16)
def judge(held: Held, drafter: Drafter, steering: Steering, features: Features) -> Judged:
    """Drafts round by round along texts that the target sampled.

    Block verification is lossless, so given the output, at least n tokens of a round are accepted with probability
    min over i up to n of min(1, Q_i / P_i), where P_i and Q_i are the probabilities of the next i tokens of the output
    under target and draft model. A round begins where the one before it ended, with a draw from that; the cache keeps what
    earlier rounds left in it, with their steering.
    """
    count, length = len(held), held.tokens.shape[1]
    index = torch.arange(count)
    seen = features(held.stream)
    empty = torch.zeros(count, length, seen.shape[-1])
    positions = torch.arange(length).expand(count, -1)
    caches = [Cache.empty(held.target.shape, count, length, torch.float32) for _ in drafter.blk]
    prompt = int(held.prompts.max())
    causal = torch.full((prompt, prompt), FORBIDDEN).triu(1)
    drafter(held.stream[0][:, :prompt], positions[:, :prompt], steering(empty[:, :prompt]), causal, caches)
    newest, cached = held.prompts.clone(), held.prompts.clone()
    judged = Judged(torch.zeros(count), torch.zeros(count), torch.zeros(count, DEPTH), torch.zeros(count, DEPTH))
    # Uniform numbers by text and position, the same for all that is compared.
    uniform = torch.rand(count, length, generator=torch.Generator().manual_seed(3))
    while (going := newest + DEPTH < held.lengths).any():
        window = (cached[:, None] + torch.arange(DEPTH + 1)).clamp(max=length - 1)
        steer = seen[index, newest.clamp(max=length) - 1][:, None].expand(-1, DEPTH + 1, -1)
        mask = torch.where(torch.arange(length) <= window[..., None], 0.0, FORBIDDEN)[:, None]
        drafted = drafter(held.stream[0][index[:, None], window], window, steering(steer), mask, caches)
        offsets = (newest - cached)[:, None] + torch.arange(DEPTH)
        places = (newest[:, None] + torch.arange(DEPTH)).clamp(max=length - 2)
        here = going.nonzero()[:, 0]
        draft = held.target.logits(drafted[here[:, None], offsets[here]]).log_softmax(-1)
        target = held.rows[here[:, None], (places - held.prompts[:, None])[here]]
        said = held.tokens[index[:, None], places + 1][here, :, None]
        ratio = (draft - target).gather(-1, said)[..., 0].cumsum(-1)
        reached = ratio.clamp(max=0).cummin(-1).values.exp()
        accepted = (reached > uniform[here, newest[here], None]).sum(-1)
        judged.rounds[here] += 1
        judged.tokens[here] += 1 + reached.sum(-1)
        judged.overlap[here] += torch.minimum(draft, target).exp().sum(-1)
        judged.agreement[here] += (draft.argmax(-1) == target.argmax(-1)).float()
        # The last drafted token is not read by the drafter in the round that drafts it.
        cached[here] = newest[here] + accepted.clamp(max=DEPTH - 1) + 1
        newest[here] = newest[here] + accepted + 1
    return judged


# --- the experiment ---


@dataclass(frozen=True)
class Plan:
    """A draft model to be made: what is trained, and from what steering it begins."""

    name: str
    about: str
    steering: Steering
    tokens: int
    distil: bool = False


def plans(constant: Steering, mapped: Steering, tokens: int) -> list[Plan]:
    """What is compared; if training sees no tokens, only what needs none."""
    low = Steering(constant.constant.shape[1], RANK)
    low.constant.data, low.write.data = mapped.constant.data.clone(), mapped.write.data[:, :RANK].clone()
    low.read.data = mapped.read.data[:, :RANK].clone()
    nothing = Steering(constant.constant.shape[1], 0)
    untrained = [
        Plan("pruned", "the pruned model as it is", nothing, 0),
        Plan("constant, least squares", "the mean of what the dropped blocks add, added at the cut", constant, 0),
        Plan("steered, least squares", "the linear map of the target's state that best predicts it, added at the cut", mapped, 0),
    ]
    trained = [
        Plan("constant, trained", "constants at the cut and after each later block, trained on rows", copy.deepcopy(constant), tokens),
        Plan("steered, trained", f"constants, and a map of rank {RANK} to the same places, trained alike", copy.deepcopy(low), tokens),
        Plan("distilled", "as *constant, trained*, and the blocks after the cut trained as well", copy.deepcopy(constant), tokens, True),
        Plan("steered and distilled", "as *steered, trained*, and the blocks after the cut trained as well", low, tokens, True),
    ]
    return untrained + (trained if tokens else [])


def kept(path: Path, make: Callable[[], Made]) -> Made:
    """What is in the file, or is made now and stored there."""
    if not path.exists():
        made = make()
        torch.save(made, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    return torch.load(path, weights_only=False)


def experiment(target: Llama, tokenizer: Tokenizer, arguments: argparse.Namespace) -> None:
    work = arguments.work
    held_texts = kept(work / "held.pt", lambda: steer_texts.held_out(target, tokenizer))
    texts = kept(work / "texts.pt", lambda: steer_texts.training(target, tokenizer, arguments.texts))
    data = kept(work / "taught.pt", lambda: taught(target, texts))
    held = Held(target, taught(target, held_texts))
    features = Features(data)
    said = torch.cat([torch.tensor(text.tokens[text.prompt_len :]) for text in texts])
    frequent = torch.bincount(said, minlength=target.shape.vocab).argsort(descending=True, stable=True)
    course = Course(data, features, target, frequent[:VOCAB])
    constant, mapped = kept(work / "least squares.pt", lambda: least_squares(data, features, target.shape.width))
    variants = []
    for plan in plans(constant, mapped, arguments.tokens):
        print(plan.name, flush=True)

        def make(plan: Plan = plan) -> Variant:
            drafter = Drafter(target)
            seconds = train(course, drafter, plan.steering, plan.tokens, plan.distil) if plan.tokens else 0.0
            return Variant(plan.name, plan.about, judge(held, drafter, plan.steering, features), seconds)

        variants.append(kept(work / f"{plan.name}.pt", make))
        judged = variants[-1].judged
        overlap = " / ".join(f"{value:.3f}" for value in judged.overlap.sum(0) / judged.rounds.sum())
        print(f"  {judged.tokens.sum() / judged.rounds.sum():.3f} tokens per round, overlap {overlap}", flush=True)
    report(variants, introduction(held_texts, texts, arguments.tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=default_folder() / BASE.name, help="default: %(default)s")
    parser.add_argument("--work", type=Path, default=default_folder().parent / "steer", help="default: %(default)s")
    parser.add_argument("--texts", type=int, default=12000, metavar="TOKENS", help="tokens to train on; default: %(default)s")
    trained = "tokens seen in each training, 0 for least squares alone; default: %(default)s"
    parser.add_argument("--tokens", type=int, default=18000, help=trained)
    arguments = parser.parse_args()
    if not arguments.model.exists():
        raise SystemExit(f"error: {arguments.model} is missing; bring it with: models/get.py {BASE.name}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments.work.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load(arguments.model)
    target.blk.to(torch.bfloat16)
    experiment(target, tokenizer, arguments)


def introduction(held: list[Text], texts: list[Text], tokens: int) -> list[str]:
    """Paragraphs on how the figures came to be."""
    seen = f"Each training saw {tokens:,} tokens." if tokens else "Nothing but least squares was tried."
    trained, judged = (sum(text.answer_len for text in some) for some in (texts, held))
    return [
        f"""Made by `just steer{"" if tokens else " --tokens 0"}`: PyTorch on one thread, not Forerun itself. Machine: {processor()}.
        Target: SmolLM2-135M-Instruct (Q4_1, run in bf16). Draft model: its first {HEAD} and last {TAIL} blocks, *pruned*.
        A vector is computed once per round from the target's state at the last verified position (its residual stream before
        block 10, before block 20 and at the end) and added to the draft model's residual stream from the cut on, for all
        tokens of the round (arXiv 2511.09844).""",
        f"""Trained on {trained:,} tokens of {len(texts)} texts that the target sampled at temperature 1: answers, and
        conversations it made up. {seen} Measured on {len(held)} other prompts of bench/prompts, of all tasks with short
        prompts, with {judged:,} tokens of sampled answers. Rounds follow these answers: since block verification is lossless,
        the probability that so many tokens of a round are accepted, given the output, has a closed form (section 4 of
        [docs/verification.md](../../docs/verification.md)).""",
        """A constant needs nothing of the target, so what steering brings is its gain over the constant, or over distillation
        alone, not over the bare pruned model.""",
    ]


if __name__ == "__main__":
    main()
