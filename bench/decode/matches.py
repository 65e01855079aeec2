#!/usr/bin/env python3
"""Which of several matches should be followed: the latest, or what followed most often?

Replays texts of bench/prompts as if a target wrote them greedily, and counts what each way of choosing drafts right.
No model runs. Writes matches.md beside this file. The drafters themselves are in crates/decode/src/draft: `latest` is
the n-gram drafter's choice, `most frequent` the suffix drafter's.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
PROMPTS = HERE.parent / "prompts"
DRAFT_LEN = 8

# About as long as the tokens of a model: short words, digits, punctuation, indentation.
TOKEN = re.compile(r" ?[A-Za-z]{1,6}| ?\d{1,3}| ?[^\sA-Za-z\d]{1,2}|\n+ *|\s+")

Case = tuple[str, str]  # the prompt, and the output to replay


def lines(name: str) -> Iterator[dict]:
    return map(json.loads, (PROMPTS / name).read_text().splitlines())


def halves(text: str) -> Case:
    return text[: len(text) // 2], text[len(text) // 2 :]


def agent() -> Iterator[Case]:
    """The last answer of each conversation, after all before it."""
    for line in lines("agent.jsonl"):
        messages = [message["content"] for message in line["messages"]]
        roles = [message["role"] for message in line["messages"]]
        if "assistant" in roles:
            last = len(roles) - 1 - roles[::-1].index("assistant")
            yield "\n".join(messages[:last]) + "\n", messages[last]


def renames() -> Iterator[Case]:
    """Edits that only rename something: their right answer follows from the prompt."""
    for line in lines("edit.jsonl"):
        names = re.search(r"[Rr]ename[^`]*`(\w+)`[^`]*to `(\w+)`", line["prompt"])
        if names:
            yield line["prompt"], re.sub(rf"\b{names[1]}\b", names[2], line["prediction"])


def code() -> Iterator[Case]:
    for path in sorted((PROMPTS / "edit_sources").iterdir()):
        if "LICENSE" not in path.name:
            yield halves(path.read_text())


def prose() -> Iterator[Case]:
    for line in lines("spec_bench.jsonl"):
        if len(line["prompt"]) > 1500:
            yield halves(line["prompt"])


class Text:
    """Committed tokens, and where each n-gram was followed by something."""

    def __init__(self, longest: int):
        self.longest = longest
        self.tokens: list[str] = []
        self.ids: dict[str, int] = {}
        self.follows: dict[tuple[str, ...], list[int]] = defaultdict(list)

    def commit(self, tokens: list[str]) -> None:
        for token in tokens:
            self.ids.setdefault(token, len(self.ids))
            end = len(self.tokens)
            for length in range(2, min(self.longest, end) + 1):
                self.follows[tuple(self.tokens[end - length :])].append(end)
            self.tokens.append(token)

    def matches(self, context: list[str]) -> list[int]:
        """Where the longest match of at least two tokens was followed by something."""
        for length in range(min(self.longest, len(context)), 1, -1):
            found = self.follows.get(tuple(context[-length:]))
            if found:
                return found
        return []

    def copied(self, start: int) -> list[str]:
        draft: list[str] = []
        for at in range(start, start + DRAFT_LEN):
            known = at < len(self.tokens)
            draft.append(self.tokens[at] if known else draft[at - len(self.tokens)])
        return draft

    def latest(self) -> list[str]:
        found = self.matches(self.tokens[-self.longest :])
        return self.copied(found[-1]) if found else []

    def frequent_start(self) -> list[str]:
        """What followed most often, and what came after it the last time."""
        found = self.matches(self.tokens[-self.longest :])
        if not found:
            return []
        counts = Counter(self.tokens[at] for at in found)
        return self.copied(max(found, key=lambda at: (counts[self.tokens[at]], at)))

    def frequent(self, prefer: Callable[["Text", int], int]) -> list[str]:
        """Token by token what followed most often; among equals, what is preferred."""
        context, draft = self.tokens[-self.longest :], []
        while len(draft) < DRAFT_LEN and (found := self.matches(context)):
            counts = Counter(self.tokens[at] for at in found)
            best = max(found, key=lambda at: (counts[self.tokens[at]], prefer(self, at)))
            draft.append(self.tokens[best])
            context.append(self.tokens[best])
        return draft


CHOICES: dict[str, Callable[[Text], list[str]]] = {
    "latest": Text.latest,
    "most frequent first token, then the latest copy": Text.frequent_start,
    "most frequent, ties to the latest": lambda text: text.frequent(lambda _, at: at),
    "most frequent, ties to the lowest id": lambda text: text.frequent(
        lambda text, at: -text.ids[text.tokens[at]]
    ),
}


def replay(cases: list[Case], longest: int, choice: Callable[[Text], list[str]]) -> str:
    rounds = drafts = accepted = written = 0
    for prompt, output in cases:
        text = Text(longest)
        text.commit(TOKEN.findall(prompt))
        rest = TOKEN.findall(output)
        written += len(rest)
        while rest:
            draft = choice(text)
            pairs = list(zip(draft, rest))
            right = next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
            rounds, drafts, accepted = rounds + 1, drafts + bool(draft), accepted + right
            text.commit(rest[: right + 1])
            rest = rest[right + 1 :]
    return f"{written / rounds:.3f} ({accepted / drafts:.2f})"


def main() -> None:
    kinds = {"agent": agent, "renames": renames, "code": code, "prose": prose}
    cases = {name: list(kind()) for name, kind in kinds.items()}
    report = (HERE / "matches.md").open("w")
    tokens = {n: sum(len(TOKEN.findall(out)) for _, out in c) for n, c in cases.items()}
    texts = ", ".join(f"{len(c)} {name} ({tokens[name]})" for name, c in cases.items())
    print(
        "# Which of several matches to follow: tokens per round\n\n"
        "Made by `just matches`, without a model: texts of bench/prompts are replayed as a greedy target's output, with\n"
        f"drafts of {DRAFT_LEN} tokens. Texts (tokens): {texts}.\n"
        "Of *agent*, the last answer of each conversation; of *renames*, the edited file; of *code* and *prose*, the second\n"
        "half of a file or a long prompt after its first. Tokens are short words, digits and punctuation, cut by a regular\n"
        "expression, with ids in the order in which they first come. In brackets: accepted tokens per draft. The n-gram\n"
        "drafter follows the *latest* match of 2 to 5 tokens; the suffix drafter drafts what is *most frequent* after a match\n"
        "of 2 to 32, ties to the lowest id.\n",
        file=report,
    )
    for longest in (5, 32):
        print(f"## Matches of 2 to {longest} tokens\n", file=report)
        print(f"| choice | {' | '.join(cases)} |\n|---{'|--:' * len(cases)}|", file=report)
        for name, choice in CHOICES.items():
            row = " | ".join(replay(of_kind, longest, choice) for of_kind in cases.values())
            print(f"| {name} | {row} |", file=report)
        if longest == 5:
            print(file=report)


if __name__ == "__main__":
    main()
