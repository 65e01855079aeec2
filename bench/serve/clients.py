"""Clients of the soak test, good and bad. Each deals with the server once and says what came of it.

An outcome is a short text to be counted. `Bad` is raised where the server broke a promise: an
accepted request without an end, a wrong answer, a status that blames the wrong side.
"""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
# Most loss that a server under test allows (`--lossy-max`), per token.
LOSSY_MAX = 0.05
# Beyond the server's own limit, what a client waits for an answer.
PATIENCE_S = 20.0
# Texts to embed or to rank: each a subject less often than this, and fewer than this.
TEXT_PARTS, TEXTS = 20, 8
SUBJECTS = ["the sea", "bread", "a lighthouse", "winter", "trains", "the moon", "a clock", "tea"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Bad(Exception):
    """The server broke a promise."""


@dataclass
class World:
    """What all clients share."""

    port: int
    timeout_s: float
    read_timeout_s: float
    random: random.Random
    # What each seed said first, and how often it said something else later.
    seeded: dict[int, str] = field(default_factory=dict)
    seeds_differed: int = 0
    # Tokens answered, by `usage`.
    tokens: int = 0
    # The longest that health and its like took.
    slowest_look_s: float = 0.0
    # The API key that requests carry, if any.
    key: str | None = None


class Line:
    """A connection, with HTTP spoken by hand so that it can be spoken badly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str | None) -> None:
        self.reader, self.writer, self.key = reader, writer, key
        self.status, self.headers = 0, dict[str, str]()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, world: World, buffer: int | None = None) -> AsyncIterator["Line"]:
        """A connection; `buffer` bounds what the system takes in for it before it is read."""
        sock = socket.socket()
        sock.setblocking(False)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", world.port))
        except OSError:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 20)
        try:
            yield cls(reader, writer, world.key)
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 2)

    def reset(self) -> None:
        """Has the connection end abruptly when it is closed."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, body: Any, path: str = CHAT, method: str = "POST") -> None:
        """Sends a request and reads the head of the answer."""
        await self.send(written(body, path, method, self.key))
        await self.head()

    async def head(self) -> None:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
        self.headers = {name.strip().lower(): value.strip() for name, value in pairs}

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        if self.headers.get("transfer-encoding") != "chunked":
            yield await self.reader.readexactly(int(self.headers.get("content-length", 0)))
            return
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")

    async def json(self) -> Any:
        return json.loads(b"".join([part async for part in self.parts()]) or b"null")

    async def events(self) -> AsyncIterator[Any]:
        """The events of a stream, `None` for its proper end. Without one it is bad."""
        rest = b""
        async for part in self.parts():
            rest += part
            while b"\n\n" in rest:
                event, rest = rest.split(b"\n\n", 1)
                if not event.startswith(b"data:"):
                    continue
                data = event[5:].strip()
                yield None if data == b"[DONE]" else json.loads(data)


def written(body: Any, path: str = CHAT, method: str = "POST", key: str | None = None) -> bytes:
    """A request as bytes; a body that is bytes is sent as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\n" if key else ""
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def question(world: World, **more: Any) -> dict[str, Any]:
    """A small request."""
    about = world.random.choice(SUBJECTS)
    number = world.random.randrange(10_000)
    text = f"Write a sentence about {about}, as number {number}."
    length = world.random.choice([8, 16, 32, 64])
    return {"messages": [{"role": "user", "content": text}], "max_tokens": length} | more


def failure(line: Line, body: Any) -> str:
    """What a refusal or failure says; bad where nobody could act on it."""
    error = (body or {}).get("error") or {}
    if not error.get("message") or "type" not in error:
        raise Bad(f"status {line.status} without an error object: {body!r:.200}")
    if line.status == 429 and "retry-after" not in line.headers:
        raise Bad("429 without Retry-After")
    names = {429: "busy (429)", 504: "late (504)"}
    if line.status in names:
        return names[line.status]
    raise Bad(f"status {line.status}: {error['message']:.200}")


async def fetched(world: World, body: dict[str, Any], path: str) -> Any:
    """The answer to a request, or the outcome if there is none."""
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body, path)
        answer = await line.json()
        return answer if line.status == 200 else failure(line, answer)


async def whole(world: World, body: dict[str, Any], path: str = CHAT) -> Any:
    """A text, or the outcome if there is none."""
    answer = await fetched(world, body, path)
    if not isinstance(answer, str):
        world.tokens += answer["usage"]["completion_tokens"]
    return answer


async def streamed(world: World, body: dict[str, Any], path: str = CHAT) -> Any:
    """The chunks of a stream, or the outcome if it failed."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = []
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body | options, path)
        if line.status != 200:
            return failure(line, await line.json())
        async for event in line.events():
            if event is None:
                world.tokens += chunks[-1]["usage"]["completion_tokens"]
                return chunks
            if "error" in event:
                if event["error"].get("code") == "timeout":
                    return "late (event)"
                raise Bad(f"stream failed: {event['error']}")
            chunks.append(event)
    raise Bad(f"a stream ended after {len(chunks)} chunks without [DONE] or an error")


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Bad(what)


async def chat(world: World) -> str:
    answer = await whole(world, question(world))
    if isinstance(answer, str):
        return answer
    choice = answer["choices"][0]
    expect(choice["finish_reason"] in ("stop", "length"), f"ended by {choice['finish_reason']}")
    expect(choice["message"]["content"] is not None, "an answer without content")
    return "answered"


async def chat_stream(world: World) -> str:
    chunks = await streamed(world, question(world))
    if isinstance(chunks, str):
        return chunks
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    ended = [reason for reason in reasons if reason]
    expect(len(ended) == 1, f"a stream of one answer ended {len(ended)} times")
    return "answered"


async def completion(world: World) -> str:
    body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.8}
    ask = world.random.choice([whole, streamed])
    answer = await ask(world, body, "/v1/completions")
    return answer if isinstance(answer, str) else "answered"


async def native(world: World) -> str:
    """llama-server's own form; now and then only to fill the cache."""
    length = world.random.choice([0, 8, 16])
    body = {"prompt": [1, "Once upon a time"], "n_predict": length, "temperature": 0.8, "n_indent": 1}
    answer = await fetched(world, body, "/completion")
    if isinstance(answer, str):
        return answer
    expect(answer["tokens_predicted"] <= length, f"{answer['tokens_predicted']} tokens of {length}")
    world.tokens += answer["tokens_predicted"]
    return "answered"


async def message(world: World) -> str:
    """Anthropic's form."""
    asked = question(world, system="Be brief.")
    answer = await fetched(world, asked, "/v1/messages")
    if isinstance(answer, str):
        return answer
    expect(answer["stop_reason"] in ("end_turn", "max_tokens"), f"ended by {answer['stop_reason']}")
    world.tokens += answer["usage"]["output_tokens"]
    return "answered"


async def response(world: World) -> str:
    """OpenAI's newer form."""
    asked = question(world)
    body = {"input": asked["messages"], "max_output_tokens": max(asked["max_tokens"], 16), "store": False}
    answer = await fetched(world, body, "/v1/responses")
    if isinstance(answer, str):
        return answer
    expect(answer["status"] in ("completed", "incomplete"), f"a response is {answer['status']}")
    world.tokens += answer["usage"]["output_tokens"]
    return "answered"


async def infill(world: World) -> str:
    """A gap in a program; a model without tokens for gaps says so."""
    body = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n", "prompt": "    return", "n_predict": 8}
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body, "/infill")
        answer = await line.json()
        if line.status == 501:
            return "refused (501): no tokens for gaps"
        if line.status != 200:
            return failure(line, answer)
        world.tokens += answer["tokens_predicted"]
        return "answered"


def some_texts(world: World) -> list[str]:
    return [world.random.choice(SUBJECTS) * world.random.randrange(1, TEXT_PARTS) for _ in range(world.random.randrange(1, TEXTS))]


def largest_texts() -> list[str]:
    """No fewer, and none shorter, than `some_texts` gives."""
    return [max(SUBJECTS, key=len) * TEXT_PARTS] * TEXTS


async def embeddings(world: World) -> str:
    """Several texts at once, by the model beside the target."""
    return await embedded(world, some_texts(world))


async def embedded(world: World, texts: list[str]) -> str:
    answer = await fetched(world, {"input": texts}, "/v1/embeddings")
    if isinstance(answer, str):
        return answer
    expect(len(answer["data"]) == len(texts), f"{len(answer['data'])} embeddings of {len(texts)} texts")
    for row in answer["data"]:
        length = sum(value * value for value in row["embedding"])
        expect(abs(length - 1) < 1e-3, f"an embedding of squared length {length}")
    return "answered"


async def rerank(world: World) -> str:
    """Documents in the order of their scores, by the model beside the target."""
    documents = some_texts(world)
    answer = await fetched(world, {"query": world.random.choice(SUBJECTS), "documents": documents}, "/v1/rerank")
    if isinstance(answer, str):
        return answer
    results = answer["results"]
    expect(sorted(it["index"] for it in results) == list(range(len(documents))), "documents are missing or there twice")
    scores = [it["relevance_score"] for it in results]
    expect(scores == sorted(scores, reverse=True), f"scores out of order: {scores}")
    return "answered"


async def schema(world: World) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = await whole(world, question(world, response_format=form, max_tokens=64))
    if isinstance(answer, str):
        return answer
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "answered, cut by max_tokens"
    try:
        person = json.loads(choice["message"]["content"])
        kept = set(person) == {"name", "age"} and 0 <= person["age"] <= 120
    except (ValueError, TypeError):
        kept = False
    expect(kept, f"not by its schema: {choice['message']['content']!r:.200}")
    return "answered"


async def tools(world: World) -> str:
    answer = await whole(world, question(world, tools=[WEATHER], tool_choice="required", max_tokens=64))
    if isinstance(answer, str):
        return answer
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return "answered, cut by max_tokens"
    calls = choice["message"].get("tool_calls") or []
    expect(bool(calls), f"no call though one was required: {choice!r:.300}")
    expect(set(json.loads(calls[0]["function"]["arguments"])) == {"city"}, f"call {calls!r:.200}")
    return "answered"


async def tools_stream(world: World) -> str:
    chunks = await streamed(world, question(world, tools=[WEATHER], max_tokens=32))
    return chunks if isinstance(chunks, str) else "answered"


async def logprobs(world: World) -> str:
    answer = await whole(world, question(world, logprobs=True, top_logprobs=5, max_tokens=16))
    if isinstance(answer, str):
        return answer
    choice = answer["choices"][0]
    said, made = len(choice["logprobs"]["content"]), answer["usage"]["completion_tokens"]
    # The end token counts in `usage` and is no part of the text.
    expect(said in (made, made - 1), f"{said} log-probabilities of {made} tokens")
    return "answered"


async def two(world: World) -> str:
    body = question(world, n=2, max_tokens=16)
    if world.random.random() < 0.5:
        answer = await whole(world, body)
        indexes = [] if isinstance(answer, str) else [it["index"] for it in answer["choices"]]
    else:
        answer = await streamed(world, body)
        chunks = [] if isinstance(answer, str) else answer
        indexes = [it["index"] for chunk in chunks for it in chunk["choices"] if it["finish_reason"]]
    if isinstance(answer, str):
        return answer
    expect(sorted(indexes) == [0, 1], f"answers {indexes} of two")
    return "answered"


async def prediction(world: World) -> str:
    text = "The sea is wide and deep, and its waves come and go without end."
    body = question(world, prediction={"type": "content", "content": text}, temperature=0)
    answer = await streamed(world, body)
    return answer if isinstance(answer, str) else "answered"


async def seeded(world: World) -> str:
    seed = world.random.randrange(4)
    body = {
        "messages": [{"role": "user", "content": f"Tell me of {SUBJECTS[seed]}."}],
        "max_tokens": 24,
        "temperature": 1,
        "seed": seed,
    }
    answer = await whole(world, body)
    if isinstance(answer, str):
        return answer
    text = answer["choices"][0]["message"]["content"]
    if world.seeded.setdefault(seed, text) != text:
        world.seeds_differed += 1
        return "answered, otherwise than before"
    return "answered"


async def plain(world: World) -> str:
    answer = await streamed(world, question(world, speculative={"enabled": False}))
    return answer if isinstance(answer, str) else "answered"


async def lossy(world: World) -> str:
    """An answer that may stray from the target, and says by how much it did."""
    loss = {"mode": world.random.choice(["budget", "account"]), "per_token": world.random.choice([0.01, LOSSY_MAX])}
    body = question(world, temperature=1, speculative={"lossy": loss})
    answer = await world.random.choice([whole, streamed])(world, body)
    if isinstance(answer, str):
        return answer
    said = (answer if isinstance(answer, dict) else answer[-1])["speculative"]
    expect(said["lossless"] is False and said["lossy"]["kept"] is True, f"a lossy answer says {said!r:.200}")
    expect(said["lossy"]["spent"] <= loss["per_token"] + 1e-9, f"more was spent than allowed: {said['lossy']}")
    return "answered"


async def many_on_one_line(world: World) -> str:
    """Several requests on one connection, the last of them in one piece with its forerunner."""
    async with asyncio.timeout(2 * (world.timeout_s + PATIENCE_S)), Line.open(world) as line:
        for _ in range(2):
            await line.ask(None, "/v1/models", "GET")
            expect(line.status == 200, f"status {line.status} for the list of models")
            await line.json()
        small = question(world, max_tokens=4)
        await line.send(written(small) + written(None, "/health", "GET"))
        await line.head()
        answer = await line.json()
        outcome = "answered" if line.status == 200 else failure(line, answer)
        await line.head()
        expect(line.status == 200, f"status {line.status} for health, asked behind a chat")
        await line.json()
        return outcome


async def look(world: World) -> str:
    """Health and metrics are answered at once, however busy the model is."""
    path = world.random.choice(["/health", "/metrics", "/v1/models", "/props", "/version", "/slots"])
    started = time.monotonic()
    async with asyncio.timeout(10), Line.open(world) as line:
        await line.ask(None, path, "GET")
        expect(line.status == 200, f"status {line.status} for {path}")
        async for _ in line.parts():
            pass
    world.slowest_look_s = max(world.slowest_look_s, time.monotonic() - started)
    return "answered"


async def leaves(world: World) -> str:
    """Reads a few chunks and goes away, abruptly or not."""
    body = question(world, stream=True, max_tokens=400, ignore_eos=True)
    wanted = world.random.randrange(1, 12)
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body)
        if line.status != 200:
            return failure(line, await line.json())
        count = 0
        async for event in line.events():
            count += 1
            if event is None or "error" in event:
                return "ended before it left"
            if count == wanted:
                break
        if world.random.random() < 0.5:
            line.reset()
    return "left in the middle"


async def cancels(world: World) -> str:
    """Sends a request and goes away before anything comes back."""
    body = question(world, stream=world.random.random() < 0.5, max_tokens=400, ignore_eos=True)
    async with asyncio.timeout(10), Line.open(world) as line:
        await line.send(written(body))
        await asyncio.sleep(world.random.random() * 0.5)
        if world.random.random() < 0.5:
            line.reset()
    return "left before the answer"


async def stalls(world: World) -> str:
    """Asks for a large stream and does not read it for long; then wants a proper end."""
    more = {"logprobs": True, "top_logprobs": 20, "max_tokens": 300, "ignore_eos": True}
    body = question(world, stream=True, n=2) | more
    seconds = world.random.choice([5.0, 15.0, world.timeout_s + 5])
    patience = 2 * world.timeout_s + seconds + PATIENCE_S
    async with asyncio.timeout(patience), Line.open(world, buffer=4096) as line:
        line.writer.transport.pause_reading()
        await line.send(written(body))
        await asyncio.sleep(seconds)
        # From here on it reads as fast as it can.
        sock = line.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        line.writer.transport.resume_reading()
        try:
            await line.head()
            if line.status != 200:
                return failure(line, await line.json())
            async for event in line.events():
                if event is None:
                    return "read late, all there"
                if "error" in event:
                    return f"given up: {event['error'].get('code') or event['error']['message']}"
        except (OSError, asyncio.IncompleteReadError):
            # To have the line cut is the one answer a client that does not read can get.
            return "given up: connection closed"
    raise Bad("a stalled stream ended without [DONE] or an error")


async def half(world: World) -> str:
    """Sends a part of a request, or nothing, and waits: the server must not wait for ever."""
    data = written(question(world))
    name, part = world.random.choice([
        ("nothing", b""),
        ("three bytes", data[:3]),
        ("half a head", data[:20]),
        ("a head", data[: data.index(b"\r\n\r\n") + 4]),
        ("half a body", data[:-5]),
        ("an HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])),
    ])
    status = "closed"
    async with Line.open(world) as line:
        if part:
            await line.send(part)
        try:
            async with asyncio.timeout(world.read_timeout_s + 5):
                while answer := await line.reader.read(4096):
                    if answer.startswith(b"HTTP"):
                        status = answer.split(b" ")[1].decode()
        except TimeoutError:
            raise Bad(f"{name} was sent, and the line stayed open") from None
        except OSError:
            pass
    expect(status in ("408", "400", "closed"), f"{name} got {status}")
    return f"{name}: {status}"


WRONG_BODIES: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1e400}',
    b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99999999999999999999}',
    b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    b"[" * 100_000,
    {"messages": "hello"},
    {"messages": []},
    {"messages": [{"role": "king", "content": "hi"}]},
    {"messages": [{"role": "user", "content": "hi"}], "temperature": "hot"},
    {"messages": [{"role": "user", "content": "hi"}], "temperature": -1e308},
    {"messages": [{"role": "user", "content": "hi"}], "top_p": 7},
    {"messages": [{"role": "user", "content": "hi"}], "n": 0},
    {"messages": [{"role": "user", "content": "hi"}], "n": 4_000_000_000},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": -2},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 0},
    {"messages": [{"role": "user", "content": "hi"}], "logit_bias": {"999999999": 3}},
    {"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 5},
    {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 99},
    {"messages": [{"role": "user", "content": "hi"}], "grammar": "root ::= ((("},
    {"messages": [{"role": "user", "content": "hi"}], "json_schema": {"type": "nonsense"}},
    {"messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"regex": "((("}},
    {"messages": [{"role": "user", "content": "hi"}], "speculative": {"rule": "none such"}},
    {"messages": [{"role": "user", "content": "hi"}], "speculative": {"length": 10**18}},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
]


async def wrong(world: World) -> str:
    """Requests that are no requests: refused as the client's fault."""
    body = world.random.choice(WRONG_BODIES)
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body)
        answer = await line.json()
        told = isinstance(answer, dict) and (answer.get("error") or {}).get("message")
        said = f"{body!r:.120} got {line.status}: {answer!r:.200}"
        expect(400 <= line.status < 500 and bool(told), said)
        return f"refused ({line.status})"


async def noise(world: World) -> str:
    """Random bytes instead of HTTP."""
    data = world.random.randbytes(world.random.choice([10, 1000, 100_000]))
    async with Line.open(world) as line:
        try:
            async with asyncio.timeout(world.read_timeout_s + 5):
                await line.send(data)
                answer = await line.reader.read(4096)
        except OSError:
            answer = b""
        except TimeoutError:
            raise Bad(f"{len(data)} random bytes were sent, and the line stayed open") from None
    status = answer.split(b" ")[1].decode() if answer.startswith(b"HTTP") else "closed"
    expect(status == "closed" or status.startswith("4"), f"noise got {answer!r:.100}")
    return f"refused ({status})"


async def too_long(world: World) -> str:
    """A prompt beyond the context."""
    body = question(world)
    body["messages"][0]["content"] = "word " * world.random.choice([1500, 20_000])
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        await line.ask(body)
        answer = await line.json()
        # It is tokenised only once it has a place in the queue.
        if line.status == 429:
            return failure(line, answer)
        code = (answer.get("error") or {}).get("code")
        expect(line.status == 400 and code == "context_length_exceeded", f"{line.status} {answer!r:.200}")
    return "refused (400)"


async def too_large(world: World) -> str:
    """Ten megabytes, announced or in chunks."""
    text = b'{"messages": [{"role": "user", "content": "' + b"x" * 10_000_000 + b'"}]}'
    announced = world.random.random() < 0.5
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n".encode()

    async def send(line: Line) -> None:
        if announced:
            await line.send(head + f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
            return
        await line.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(text), 1 << 16):
            part = text[at : at + (1 << 16)]
            await line.send(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await line.send(b"0\r\n\r\n")

    kind = "announced" if announced else "in chunks"
    async with asyncio.timeout(world.timeout_s + PATIENCE_S), Line.open(world) as line:
        # As good clients do, it listens while it sends: the answer may come before all is sent.
        sending = asyncio.create_task(send(line))
        try:
            await line.head()
        except (OSError, asyncio.IncompleteReadError):
            return f"{kind}: connection closed"
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        expect(line.status == 413, f"ten megabytes, {kind}, got {line.status}")
    return f"{kind}: refused (413)"


async def wrong_place(world: World) -> str:
    """Paths that are none, and methods they do not take."""
    method, path, status = world.random.choice([
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("PUT", "/health", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("BREW", CHAT, 405),
    ])
    async with asyncio.timeout(10), Line.open(world) as line:
        await line.ask(None, path, method)
        expect(line.status == status, f"{method} {path} got {line.status}, not {status}")
    return f"refused ({status})"


async def knocks(world: World) -> str:
    """Many connections, opened and closed."""
    async with asyncio.timeout(20):
        for _ in range(30):
            async with Line.open(world) as line:
                if world.random.random() < 0.5:
                    line.reset()
    return "30 connections"


Client = Callable[[World], Awaitable[str]]

# Clients that want answers, by how often they come, and those that disturb.
GOOD: dict[Client, int] = {
    chat: 5, chat_stream: 6, completion: 2, native: 2, schema: 3, tools: 2, tools_stream: 1,
    logprobs: 2, two: 2, prediction: 2, seeded: 2, plain: 1, many_on_one_line: 1, lossy: 9,
    message: 2, response: 2, infill: 1,
}
# One or the other, by what the model beside the target does.
EMBED: dict[Client, int] = {embeddings: 2}
RANK: dict[Client, int] = {rerank: 2}
BAD: dict[Client, int] = {
    leaves: 4, cancels: 4, stalls: 2, half: 4, wrong: 6, noise: 2, too_long: 2, too_large: 2,
    wrong_place: 2, knocks: 2, look: 4,
}
