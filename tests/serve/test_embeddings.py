"""Embeddings and scores of documents, as clients ask for them, by a model beside the target."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from conftest import MODELS, TARGET, Server
from langchain_openai import OpenAIEmbeddings

BERT, RERANKER = MODELS / "zoo/bert.gguf", MODELS / "zoo/bert-reranker.gguf"


@pytest.fixture(scope="module")
def embedding(start: Callable[..., Server]) -> Server:
    """A real model that embeds by the mean of its rows."""
    return start("--embedding-model", str(MODELS / TARGET), "--pooling", "mean")


@pytest.fixture(scope="module")
def reranking(start: Callable[..., Server]) -> Server:
    return start("--embedding-model", str(RERANKER))


def near(one: Any, other: Any) -> float:
    return float(np.dot(one, other))


SAME = ("The cat sat on the mat and looked out of the window.", "A cat was sitting on a rug, looking through the window.")
OTHER = "Quarterly revenue rose by nine percent, the company said."


def test_openai_s_client_gets_what_it_asks_for(embedding: Server) -> None:
    client = openai.OpenAI(base_url=embedding.url + "/v1", api_key="none")
    # It asks for base64 unless told otherwise.
    coded = client.embeddings.create(model="any", input=[*SAME, OTHER])
    plain = client.embeddings.create(model="any", input=[*SAME, OTHER], encoding_format="float")
    one, same, other = (np.array(it.embedding) for it in coded.data)
    assert [it.index for it in coded.data] == [0, 1, 2]
    assert np.allclose(one, plain.data[0].embedding, atol=1e-6)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-4)
    assert near(one, same) > near(one, other) + 0.02
    assert coded.usage.prompt_tokens == plain.usage.total_tokens > 30


def test_langchain_gets_what_it_asks_for(embedding: Server) -> None:
    # Unless told not to, it sends the ids of OpenAI's tokens, which mean something else here.
    embeddings = OpenAIEmbeddings(base_url=embedding.url + "/v1", api_key="none", model="any", check_embedding_ctx_length=False)
    one, same, other = embeddings.embed_documents([*SAME, OTHER])
    assert near(one, same) > near(one, other) + 0.02
    assert np.allclose(embeddings.embed_query(OTHER), other, atol=1e-4)


def test_texts_and_their_tokens_are_embedded_alike(embedding: Server) -> None:
    tokens = embedding.post("/tokenize", content=OTHER, add_special=True)["tokens"]
    text = embedding.post("/v1/embeddings", input=OTHER)
    ids = embedding.post("/v1/embeddings", input=tokens)
    assert text["usage"] == ids["usage"]
    assert np.allclose(text["data"][0]["embedding"], ids["data"][0]["embedding"], atol=1e-5)


def test_chats_go_on_while_texts_are_embedded(embedding: Server) -> None:
    seeded = {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0, "seed": 1}
    alone = embedding.complete(**seeded)["choices"][0]["text"]
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            embedding.post("/v1/embeddings", input=[OTHER * 8] * 16)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        assert embedding.complete(**seeded)["choices"][0]["text"] == alone
    finally:
        over.set()
        thread.join()


def test_a_client_that_leaves_costs_nobody_his_turn(embedding: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        embedding.http.post("/v1/embeddings", json={"input": [OTHER * 20] * 400}, timeout=0.5)
    answer = embedding.http.post("/v1/embeddings", json={"input": OTHER}, timeout=20)
    assert answer.status_code == 200


def test_documents_are_scored(reranking: Server) -> None:
    documents = ["the sea", "a cat on a mat", "revenue"]
    ranked = reranking.post("/v1/rerank", model="any", query="a cat", documents=documents, top_n=2)
    scores = [it["relevance_score"] for it in ranked["results"]]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    texts = reranking.post("/rerank", query="a cat", texts=documents)
    assert [it["index"] for it in texts][:2] == [it["index"] for it in ranked["results"]]
    # The order of documents changes nothing but their numbers.
    back = reranking.post("/v1/rerank", query="a cat", documents=documents[::-1])
    assert [2 - it["index"] for it in back["results"]][:2] == [it["index"] for it in ranked["results"]]


def test_a_server_without_the_model_says_what_to_do(server: Server) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})):
        answer = server.http.post(path, json=body)
        assert answer.status_code == 400 and "--embedding-model" in answer.json()["error"]["message"]


def test_it_stops_under_load(start: Callable[..., Server]) -> None:
    running = start("--embedding-model", str(BERT), "--shutdown-timeout", "2")

    def load() -> None:
        try:
            while True:
                answer = running.http.post("/v1/embeddings", json={"input": ["and so on " * 40] * 512})
                if answer.status_code != 200:
                    return
        except httpx.TransportError:
            return

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    running.send(signal.SIGTERM)
    assert running.wait(20) == 0
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
