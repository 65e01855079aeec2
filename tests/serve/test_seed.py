"""A seed fixes the text: alone or beside others, whatever is drafted and by what."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import DRAFTED, FULL, PLAIN, USELESS, Server, wait_until

SEEDS = range(20 if FULL else 2)
OTHERS = ["Write a poem about rain.", "List five animals.", "Explain how a bicycle works."]


@pytest.fixture(scope="module")
def useless(start: Callable[..., Server]) -> Server:
    """Another drafter, whose drafts are mostly rejected."""
    return start(drafter=USELESS)


@pytest.fixture(scope="module")
def texts(server: Server) -> list[str]:
    """What plain decoding says for each seed."""
    return [text(server, seed, PLAIN) for seed in SEEDS]


def text(server: Server, seed: int, speculative: dict[str, Any], **fields: Any) -> str:
    body = {"max_tokens": 20, "temperature": 1, "seed": seed, "speculative": speculative}
    answer = server.chat(**(body | fields))
    rule = speculative.get("rule", "coupled")
    assert (answer["speculative"]["rule"], answer["speculative"]["lossless"]) == (rule, True)
    return answer["choices"][0]["message"]["content"]


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """All slots but one make texts meanwhile."""
    with ThreadPoolExecutor(len(OTHERS)) as pool:
        questions = [[{"role": "user", "content": other}] for other in OTHERS]
        fields = {"max_tokens": 32, "temperature": 1, "speculative": DRAFTED, "ignore_eos": True}
        running = [pool.submit(server.chat, messages=question, **fields) for question in questions]
        wait_until(lambda: server.running() == len(OTHERS), 20, "three texts in the making")
        yield
        for other in running:
            other.result()


def test_seeds_differ(texts: list[str]) -> None:
    assert len(set(texts)) == len(texts)


def test_the_same_seed_gives_the_same_text_with_drafts(server: Server, texts: list[str]) -> None:
    for length in (3, 8):
        drafted = [text(server, seed, {"enabled": True, "length": length}) for seed in SEEDS]
        assert drafted == texts
    assert [text(server, seed, {}) for seed in SEEDS] == texts


def test_the_same_seed_gives_the_same_text_beside_others(server: Server, texts: list[str]) -> None:
    for seed, expected in zip(SEEDS, texts):
        with busy(server):
            assert text(server, seed, DRAFTED) == expected
    with busy(server):
        assert text(server, SEEDS[0], PLAIN) == texts[0]


def test_the_same_seed_gives_the_same_text_with_another_drafter(useless: Server, texts: list[str]) -> None:
    assert [text(useless, seed, DRAFTED) for seed in SEEDS] == texts
    with busy(useless):
        assert text(useless, SEEDS[-1], DRAFTED) == texts[-1]
    metrics = useless.metrics()
    accepted = metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert accepted < 0.3 * metrics["vllm:spec_decode_num_draft_tokens_total"], "this drafter should be useless"


def test_the_same_seed_gives_the_same_text_with_a_prediction(server: Server, texts: list[str]) -> None:
    for said in (texts[0], texts[-1], "Something else altogether."):
        prediction = {"type": "content", "content": said}
        assert text(server, SEEDS[0], {}, prediction=prediction) == texts[0]


def test_answers_of_a_request_have_seeds_of_their_own(server: Server, texts: list[str]) -> None:
    fields = {"max_tokens": 20, "temperature": 1, "seed": SEEDS[0], "n": 2, "speculative": DRAFTED}
    choices = server.chat(**fields)["choices"]
    assert [choice["message"]["content"] for choice in choices] == texts[:2]


def test_other_rules_draw_otherwise(server: Server, texts: list[str]) -> None:
    """The check of the checks: a rule that is not coupled to the seed says something else."""
    block = DRAFTED | {"rule": "block"}
    assert [text(server, seed, block) for seed in SEEDS] != texts
    # Without concurrency its text is fixed all the same: the drafts are.
    assert text(server, SEEDS[0], block) == text(server, SEEDS[0], block)


def test_rows_are_the_same_wherever_a_text_lies(server: Server) -> None:
    """Others take the place of what is cached, and leave cells in another order; nothing else runs meanwhile."""
    others = ["The capital of France is", "One, two, three,", "Good morning, my", "It was a dark", "When I was"]

    def greedy() -> list[float]:
        fields = {"max_tokens": 8, "temperature": 0, "logprobs": True, "speculative": PLAIN}
        (choice,) = server.chat(**fields)["choices"]
        return [token["logprob"] for token in choice["logprobs"]["content"]]

    first = greedy()
    for speculative in (PLAIN, DRAFTED):
        server.complete(prompt=others, max_tokens=4, temperature=0, speculative=speculative)
        assert [greedy() for _ in range(3)] == [first] * 3
