"""How the server is reached, what it bears, how it stops, and what it says of itself."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import BINARY, DRAFTED, MODELS, PLAIN, SEA, TARGET, Server, wait_until

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
LONG = {"messages": SEA, "max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def narrow(start: Callable[..., Server]) -> Server:
    """One text at a time, one that waits, little context."""
    return start("-np", "1", "-c", "512", "--max-queued-requests", "1", drafter=None)


@pytest.fixture(scope="module")
def strict(start: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Keys, and little patience."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# a comment\nfrom-file\n\n  spaced  \n  # another\n")
    flags = ["--api-key", "secret", "--api-key-file", str(keys), "--read-timeout", "1", "--timeout", "1"]
    return start("-c", "512", *flags, drafter=None)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, in OpenAI's form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


def events(response: httpx.Response) -> Iterator[Any]:
    """The events of a stream: chunks, errors, and `[DONE]`."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


@contextmanager
def stream(server: Server, **fields: Any) -> Iterator[Iterator[Any]]:
    """The events of a long answer, begun."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        with client.stream("POST", CHAT, json=LONG | {"stream": True} | fields) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            sent = events(response)
            said = (event for event in sent if event["choices"][0]["delta"].get("content"))
            next(said)
            yield sent


def speak(server: Server, data: bytes, *, close: bool = False, seconds: float = 20) -> tuple[bytes, float]:
    """Sends bytes as they are; gives all that comes back until the server hangs up, and how long that took."""
    started = time.monotonic()
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as line:
        line.sendall(data)
        if close:
            line.shutdown(socket.SHUT_WR)
        try:
            while part := line.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    return received, time.monotonic() - started


def head(length: int | str, path: str = CHAT, extra: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json", f"content-length: {length}", extra]
    return "\r\n".join(line for line in lines if line).encode() + b"\r\n\r\n"


# Reaching it.


def test_only_the_machine_itself_is_served(server: Server) -> None:
    assert server.address.startswith("127.0.0.1:")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


@pytest.mark.parametrize("path", ["/v1/models", "/props", f"/v1/models/{TARGET}"])
def test_keys_guard_what_is_read(strict: Server, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer"}, {"authorization": "secret"}):
        response = strict.http.get(path, headers=headers)
        assert error_of(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    for key in ("secret", "from-file", "spaced"):
        assert strict.http.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_a_wrong_key_is_told_apart_from_none(strict: Server) -> None:
    for headers in ({}, {"authorization": "Bearer"}, {"authorization": "secret"}):
        assert "send it as `Authorization: Bearer KEY`" in error_of(strict.http.get("/v1/models", headers=headers), 401)["message"]
    for key in ("wrong", "# a comment", "# another", "#"):
        error = error_of(strict.http.get("/v1/models", headers={"authorization": f"Bearer {key}"}), 401)
        assert "not valid" in error["message"]


@pytest.mark.parametrize("text", ["", "\n  \n", "# only a comment\n\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(text)
    done = started_in_vain("-m", str(MODELS / TARGET), "--port", "0", "--api-key-file", str(keys))
    assert "no API key" in done.stderr and str(keys) in done.stderr and "listening" not in done.stderr


def started_in_vain(*flags: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(BINARY), "serve", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    return done


def test_a_file_that_is_no_model_is_refused_before_anybody_is_told_of_an_address(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("This is no model.")
    good = str(MODELS / TARGET)
    for flags in (["-m", "none.gguf"], ["-m", str(tmp_path / "text.gguf")], ["-m", good, "-md", "none.gguf"]):
        done = started_in_vain("--port", "0", *flags)
        assert flags[-1] in done.stderr and "listening" not in done.stderr


def test_a_host_may_be_a_name_and_the_address_is_a_link(start: Callable[..., Server]) -> None:
    server = start("--host", "localhost", drafter=None)
    assert server.address == f"127.0.0.1:{server.port}"
    (ready,) = [line for line in server.lines if "ready" in line]
    assert f"http://127.0.0.1:{server.port}" in ready
    server.stop()
    done = started_in_vain("-m", str(MODELS / TARGET), "--host", "no.such.host.invalid")
    assert "--host no.such.host.invalid has no address" in done.stderr


def test_without_keys_a_page_cannot_come_under_a_name_of_its_own(server: Server) -> None:
    own = ["localhost", f"localhost:{server.port}", "127.0.0.1", "[::1]:80", "10.0.0.1:8080", socket.gethostname()]
    for host in own:
        assert server.http.get("/v1/models", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example", "127.0.0.1.evil.example"):
        error = error_of(server.http.get("/v1/models", headers={"host": host}), 403)
        assert error["code"] == "host_not_allowed" and "--allowed-hosts" in error["message"], host
        body = {"messages": SEA, "max_tokens": 1}
        error_of(httpx.post(server.url + CHAT, json=body, headers={"host": host}), 403)
        # Probes and gateways ask by any name.
        assert server.http.get("/readyz", headers={"host": host}).status_code == 200
    answer, _ = speak(server, b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 200"), "old clients name no host"


def test_names_can_be_allowed_and_keys_make_them_needless(strict: Server, start: Callable[..., Server]) -> None:
    named = start("--allowed-hosts", "gateway,api.example", drafter=None)
    for host, status in {"gateway": 200, "API.example:443": 200, "other": 403}.items():
        assert named.http.get("/v1/models", headers={"host": host}).status_code == status, host
    named.stop()
    headers = {"host": "any.example", "authorization": "Bearer secret"}
    assert strict.http.get("/v1/models", headers=headers).status_code == 200


def test_a_browser_must_say_that_it_sends_json(server: Server) -> None:
    """What it sends without a type, it sends to any site that a page names, and does not ask first."""
    body = json.dumps({"messages": SEA, "max_tokens": 1})
    assert httpx.post(server.url + CHAT, content=body).status_code == 200
    error_of(httpx.post(server.url + CHAT, content=body, headers={"origin": "http://evil.example"}), 415)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize", "/detokenize", "/apply-template"])
def test_keys_guard_what_is_sent(strict: Server, path: str) -> None:
    assert error_of(httpx.post(strict.url + path, json={}), 401)["type"] == "authentication_error"
    assert error_of(httpx.post(strict.url + path, json={}, headers={"authorization": "Bearer secret"}), 400)


@pytest.mark.parametrize("path", ["/", "/health", "/version", "/openapi.json"])
def test_some_places_need_no_key(strict: Server, path: str) -> None:
    assert strict.http.get(path).status_code == 200


def test_the_scheme_of_a_key_is_read_in_either_case(strict: Server) -> None:
    assert strict.http.get("/v1/models", headers={"authorization": "bearer secret"}).status_code == 200


def test_unknown_places_and_methods_are_refused(server: Server) -> None:
    error_of(server.http.get("/v2/nothing"), 404)
    error_of(httpx.post(server.url + "/v1/chat", json={}), 404)
    response = server.http.get(CHAT)
    error_of(response, 405)
    assert "POST" in response.headers["allow"]
    error_of(httpx.post(server.url + "/health", json={}), 405)
    error_of(server.http.delete("/v1/models"), 405)


# Bodies.


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"garbage", b"[]", b"null", b"\xff\xfe", b'{"messages": "\xff"}', b'{"messages":[],"messages":[]}', b"[" * 100_000],
    ids=["empty", "cut", "garbage", "list", "null", "bytes", "not utf-8", "twice", "deep"],
)
def test_a_body_that_is_no_request_is_refused(server: Server, body: bytes) -> None:
    error = error_of(server.http.post(CHAT, content=body, headers=JSON), 400)
    assert error["type"] == "invalid_request_error"


def test_a_body_must_be_json(server: Server) -> None:
    body = json.dumps({"messages": SEA, "max_tokens": 1})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
        error_of(httpx.post(server.url + CHAT, content=body, headers={"content-type": kind}), 415)
    for kind in ("application/json", "application/json; charset=utf-8"):
        assert httpx.post(server.url + CHAT, content=body, headers={"content-type": kind}).status_code == 200


def test_the_type_of_a_body_is_read_in_either_case(server: Server) -> None:
    body = json.dumps({"messages": SEA, "max_tokens": 1})
    kind = {"content-type": "Application/JSON"}
    assert httpx.post(server.url + CHAT, content=body, headers=kind).status_code == 200


def test_a_body_over_the_limit_is_refused(server: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * (10 << 20)}]}).encode()
    error_of(httpx.post(server.url + CHAT, content=body, headers=JSON), 413)
    pieces = (body[at : at + 65536] for at in range(0, len(body), 65536))
    error_of(httpx.post(server.url + CHAT, content=pieces, headers=JSON), 413)
    # What is announced is refused before it is sent.
    answer, seconds = speak(server, head(10 << 20))
    assert answer.startswith(b"HTTP/1.1 413") and seconds < 5


def test_a_refusal_leaves_the_line_usable_or_says_otherwise(server: Server) -> None:
    """The body comes a moment after the head, as many clients send it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as line:
        line.sendall(head(2, path="/v1/nothing"))
        refusal = line.recv(65536)
        assert refusal.startswith(b"HTTP/1.1 404")
        if b"connection: close" not in refusal.lower():
            line.sendall(b"{}GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert line.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_body_that_breaks_off_does_no_harm(server: Server) -> None:
    answer, seconds = speak(server, head(1000) + b'{"messages":', close=True)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert seconds < 5
    chunked = head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    answer, _ = speak(server, chunked + b"zz\r\nnot a length", close=True)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert server.is_healthy()


def test_a_body_that_is_slow_to_come_is_given_up(strict: Server) -> None:
    answer, seconds = speak(strict, head(1000, extra="authorization: Bearer secret") + b'{"messages":')
    assert answer.startswith(b"HTTP/1.1 408") or answer == b""
    assert 0.5 < seconds < 5


def test_a_head_that_is_slow_to_come_is_given_up(strict: Server) -> None:
    _, seconds = speak(strict, b"POST /v1/chat/completions HTTP/1.1\r\nhost: ")
    assert 0.5 < seconds < 5


def test_a_client_that_says_nothing_is_given_up(strict: Server) -> None:
    _, seconds = speak(strict, b"", seconds=4)
    assert 0.5 < seconds < 4


def test_no_head_is_too_strange(server: Server) -> None:
    for data in (b"\0\1\2\3\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", head("-5"), head("many")):
        answer, _ = speak(server, data, close=True)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert server.is_healthy()


def test_a_prompt_over_the_context_is_refused(narrow: Server) -> None:
    for path, fields in {
        CHAT: {"messages": [{"role": "user", "content": "sea " * 600}]},
        "/v1/completions": {"prompt": [504] * 513},
    }.items():
        error = error_of(narrow.http.post(path, json=fields), 400)
        assert error["code"] == "context_length_exceeded" and "512" in error["message"]


def test_a_text_ends_with_the_context(narrow: Server) -> None:
    for length in (505, 511, 512):
        answer = narrow.complete(prompt=[504] * length, max_tokens=100, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert 1 <= answer["usage"]["completion_tokens"] <= 513 - length


# Many requests, and those nobody waits for.


@contextmanager
def queued(server: Server) -> Iterator[tuple[int, httpx.Response]]:
    """A text in the making and requests behind it: how many wait before one is refused, and that refusal."""
    short = {"messages": SEA, "max_tokens": 1}
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
        waiting: list[Any] = []
        with stream(server):
            for count in range(8):
                answer = pool.submit(client.post, CHAT, json=short)
                wait_until(lambda: answer.done() or server.waiting() > count, 5, "it waits or is refused")
                time.sleep(0.2)  # The worker sees it at the end of a round; a refusal must hold after that too.
                if answer.done():
                    break
                waiting.append(answer)
            yield len(waiting), answer.result()
        # The reader has left, and those who waited have their turn.
        assert [answer.result().status_code for answer in waiting] == [200] * len(waiting)
    assert server.waiting() == 0


def test_requests_beyond_the_queue_are_told_to_come_again(narrow: Server) -> None:
    with queued(narrow) as (count, refusal):
        assert count >= 1
        assert error_of(refusal, 429)["code"] == "queue_full"
        assert int(refusal.headers["retry-after"]) >= 1
        streamed = httpx.post(narrow.url + CHAT, json=LONG | {"stream": True}, timeout=5)
        assert error_of(streamed, 429)["type"] == "rate_limit_error"
        assert narrow.metrics()['forerun:requests_refused_total{reason="429"}'] >= 2


def test_just_as_many_wait_as_was_said(narrow: Server) -> None:
    with queued(narrow) as (count, _):
        pass
    assert count == 1, "--max-queued-requests 1"


def test_a_request_of_several_answers_is_honoured_however_short_the_queue(narrow: Server) -> None:
    assert len(narrow.chat(n=3, max_tokens=1)["choices"]) == 3


def test_a_reader_that_leaves_a_stream_frees_its_place(narrow: Server) -> None:
    with stream(narrow):
        wait_until(lambda: narrow.running() == 1, 3, "the text is counted")
    wait_until(lambda: narrow.running() == 0, 3, "the place is free")


def test_a_client_that_leaves_before_its_answer_frees_its_place(narrow: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(narrow.url + CHAT, json=LONG, timeout=0.5)
    wait_until(lambda: narrow.running() == 0, 3, "the place is free")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_the_queue_frees_its_place(narrow: Server, streamed: bool) -> None:
    with stream(narrow):
        with socket.create_connection(("127.0.0.1", narrow.port)) as line:
            body = json.dumps(LONG | {"stream": streamed}).encode()
            line.sendall(head(len(body)) + body)
            wait_until(lambda: narrow.waiting() == 1, 5, "one waits")
        wait_until(lambda: narrow.waiting() == 0, 2, "none waits")


def test_a_reader_that_does_not_read_holds_nobody_up(server: Server) -> None:
    body = json.dumps(LONG | {"stream": True, "max_tokens": 60, "logprobs": True, "top_logprobs": 20}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(head(len(body)) + body)
        wait_until(lambda: server.running() == 1, 5, "the text is begun")
        assert server.chat(max_tokens=4)["choices"]
        wait_until(lambda: server.running() == 0, 30, "the text is made all the same")


def test_a_request_that_takes_too_long_ends_with_an_error(strict: Server) -> None:
    key = {"authorization": "Bearer secret"}
    error = error_of(strict.http.post(CHAT, json=LONG, headers=key), 504)
    assert (error["code"], error["type"]) == ("timeout", "server_error")
    with strict.http.stream("POST", CHAT, json=LONG | {"stream": True}, headers=key) as response:
        assert response.status_code == 200
        *chunks, last = events(response)
    assert last["error"]["code"] == "timeout" and "[DONE]" not in chunks
    assert len(chunks) > 3


# Starting and stopping.


def test_a_server_says_that_it_loads_and_then_that_it_is_ready(start: Callable[..., Server]) -> None:
    server = start(ready=False)
    response = server.http.get("/health")
    error = error_of(response, 503)
    assert (error["message"], error["code"]) == ("Loading model", "loading_model") and response.headers["retry-after"]
    assert server.http.get("/livez").json() == {"status": "loading"}
    assert error_of(server.http.post(CHAT, json=LONG), 503)["code"] == "loading_model"
    assert error_of(server.http.get("/v1/models"), 503)["code"] == "loading_model"
    wait_until(server.is_healthy, 60, "/health")
    assert server.http.get("/readyz").status_code == 200
    assert server.http.get("/livez").json() == {"status": "ok"}


def test_a_server_that_loads_can_be_stopped(start: Callable[..., Server]) -> None:
    server = start(ready=False)
    server.send(signal.SIGTERM)
    assert server.wait(10) == 0
    assert not any("ready" in line for line in server.lines)


def test_a_stream_ends_well_when_the_server_is_told_to_stop(start: Callable[..., Server]) -> None:
    server = start()
    idle = socket.create_connection(("127.0.0.1", server.port))
    with stream(server, max_tokens=60) as sent:
        server.send(signal.SIGTERM)
        wait_until(lambda: any("stopping" in line for line in server.lines), 5, "the log says so")
        assert error_of(httpx.get(server.url + "/health"), 503)["code"] == "shutting_down"
        assert httpx.get(server.url + "/livez").json() == {"status": "draining"}
        refused = httpx.post(server.url + CHAT, json=LONG)
        assert error_of(refused, 503)["code"] == "shutting_down" and refused.headers["retry-after"]
        *chunks, last = sent
    assert last == "[DONE]"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert server.wait(10) == 0
    idle.close()


def test_a_second_signal_breaks_streams_off_with_an_error(start: Callable[..., Server]) -> None:
    server = start(drafter=None)
    with stream(server) as sent:
        server.send(signal.SIGTERM)
        wait_until(lambda: any("stopping" in line for line in server.lines), 5, "the log says so")
        next(sent)
        server.send(signal.SIGINT)
        *_, last = sent
    assert last["error"]["code"] == "shutting_down"
    assert server.wait(5) == 0


def test_texts_are_broken_off_when_the_grace_is_over(start: Callable[..., Server]) -> None:
    server = start("--shutdown-timeout", "1", drafter=None)
    with stream(server) as sent:
        server.send(signal.SIGTERM)
        started = time.monotonic()
        *_, last = sent
    assert last["error"]["code"] == "shutting_down"
    assert server.wait(5) == 0
    assert time.monotonic() - started < 5


def test_a_killed_server_is_back_within_its_load_time(start: Callable[..., Server]) -> None:
    server = start()
    load_s = server.load_s
    with stream(server) as sent:
        server.send(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            list(sent)
    assert server.wait() == -signal.SIGKILL
    server.start()
    assert server.load_s < 3 * load_s + 2
    assert server.chat(max_tokens=4)["usage"]["completion_tokens"] == 4
    server.stop()


def test_a_server_that_cannot_start_says_why(server: Server) -> None:
    command = [*server.command]
    command[command.index("--port") + 1] = str(server.port)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot listen" in done.stderr


# What it says of itself.


def test_metrics_have_the_names_of_vllm(server: Server) -> None:
    before = server.metrics()
    server.chat(max_tokens=12, temperature=0, ignore_eos=True, speculative=DRAFTED)
    answer = server.chat(max_tokens=12, temperature=0, ignore_eos=True, speculative=DRAFTED)
    # The last token is sent before it is counted.
    ended = 'vllm:request_success_total{finished_reason="length"}'
    wait_until(lambda: server.metrics().get(ended, 0) >= before.get(ended, 0) + 2, 3, "both are counted")
    wait_until(lambda: server.running() == 0, 3, "none is running")
    after = server.metrics()
    prompt = answer["usage"]["prompt_tokens"]

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("vllm:prompt_tokens_total") == 2 * prompt
    assert grown("vllm:generation_tokens_total") == 24
    assert grown("vllm:prefix_cache_queries_total") == 2 * prompt
    assert prompt - 1 <= grown("vllm:prefix_cache_hits_total") <= 2 * prompt - 2
    assert grown(ended) == 2
    drafts, drafted = grown("vllm:spec_decode_num_drafts_total"), grown("vllm:spec_decode_num_draft_tokens_total")
    accepted = grown("vllm:spec_decode_num_accepted_tokens_total")
    assert drafts <= drafted <= 3 * drafts and 0 < accepted <= drafted
    positions = [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{n}"}}' for n in range(3)]
    by_position = [grown(name) for name in positions if name in after]
    assert sum(by_position) == accepted and by_position == sorted(by_position, reverse=True)
    for name, count in {
        "vllm:time_to_first_token_seconds": 2,
        "vllm:inter_token_latency_seconds": 22,
        "vllm:request_time_per_output_token_seconds": 2,
        "vllm:e2e_request_latency_seconds": 2,
    }.items():
        assert grown(f"{name}_count") == count, name
        assert 0 < grown(f"{name}_sum") < 60, name
    assert grown("vllm:e2e_request_latency_seconds_sum") > grown("vllm:time_to_first_token_seconds_sum")
    assert after["vllm:kv_cache_usage_perc"] == 0, "what ended texts left behind gives way"
    assert after['vllm:cache_config_info{block_size="16",num_gpu_blocks="256"}'] == 1
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["forerun:speedup_over_plain"] > 0
    assert grown('forerun:round_seconds_total{part="target"}') > 0
    text = server.http.get("/metrics").text
    assert f'model_name="{TARGET}"' in text and text.endswith("# EOF\n")


def test_gateways_see_how_busy_it_is(server: Server) -> None:
    with stream(server, max_tokens=40) as sent:
        next(sent)
        (load,) = server.http.get("/v1/loads").json()["loads"]
        usage = server.metrics()["vllm:kv_cache_usage_perc"]
        list(sent)
    assert (load["num_running_reqs"], load["num_waiting_reqs"], load["max_running_requests"]) == (1, 0, 4)
    assert load["max_total_num_tokens"] == 4 * 1024 and load["utilization"] == 0.25
    assert 20 < load["num_used_tokens"] < 200 and 0 < usage < 0.1
    assert load["token_usage"] == load["num_used_tokens"] / load["max_total_num_tokens"]
    wait_until(lambda: server.running() == 0, 5, "it has ended")
    (idle,) = server.http.get("/loads").json()["loads"]
    assert (idle["num_running_reqs"], idle["num_used_tokens"], idle["gen_throughput"]) == (0, 0, 0)


def test_a_refused_request_says_which_field_it_is(server: Server) -> None:
    error = error_of(server.http.post(CHAT, json={"messages": SEA, "warmth": 1, "mirostat": 2}), 400)
    assert "mirostat" in error["message"]
    error = error_of(server.http.post(CHAT, json={"messages": SEA, "speculative": {"size": 3}}), 400)
    assert "size" in error["message"] and "length" in error["message"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"enabled": False}, {"enabled": False, "drafters": [], "length": 0, "adaptive": False, "rule": "block"}),
        ({"enabled": True}, {"enabled": True, "drafters": ["draft-model"], "adaptive": True, "rule": "block"}),
        ({"length": 2}, {"length": 2, "adaptive": False}),
        ({"drafter": "draft-model"}, {"drafters": ["draft-model"]}),
        ({"drafter": ["draft-model"], "length": 1}, {"drafters": ["draft-model"], "length": 1}),
        ({"paths": 1}, {"paths": 1}),
        ({"rule": "token"}, {"rule": "token"}),
        ({"rule": "coupled", "length": 3}, {"rule": "coupled"}),
    ],
    ids=str,
)
def test_what_is_drafted_is_the_request_s(server: Server, asked: Any, said: Any) -> None:
    answer = server.chat(max_tokens=6, temperature=0, speculative=asked)
    ran, metrics = answer["speculative"], answer["metrics"]["speculative_decoding"]
    assert ran["lossless"] is True
    assert {name: ran[name] for name in said} == said
    if "length" in asked:
        assert metrics["num_spec_steps"] > 0
        assert metrics["num_draft_tokens"] <= asked["length"] * metrics["num_spec_steps"]
        assert len(metrics["acceptance_histogram"]) <= asked["length"] + 1
        assert metrics["num_spec_tokens"] == asked["length"]
    if asked.get("enabled") is False:
        assert metrics["num_draft_tokens"] == 0


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"length": 0}, "length"),
        ({"length": 9}, "length"),
        ({"length": 65}, "length"),
        ({"paths": 0}, "paths"),
        ({"paths": 2}, "paths"),
        ({"rule": "magic"}, "rule"),
        ({"drafter": "ngram"}, "drafter"),
        ({"drafter": ["draft-model", "draft-model"]}, "drafter"),
        ({"enabled": False, "length": 3}, "length"),
        ({"enabled": False, "drafter": "draft-model"}, "drafter"),
    ],
    ids=str,
)
def test_what_cannot_be_drafted_is_refused(server: Server, asked: Any, field: str) -> None:
    error = error_of(server.http.post(CHAT, json={"messages": SEA, "speculative": asked}), 400)
    assert error["param"] == f"speculative.{field}"


def test_a_draft_longer_than_the_server_takes_is_refused_by_its_own_maximum(server: Server) -> None:
    asked = {"length": 9}
    error = error_of(server.http.post(CHAT, json={"messages": SEA, "speculative": asked}), 400)
    assert "expected 1 to 8" in error["message"] and "--spec-draft-n-max" in error["message"]


def test_a_server_without_drafter_refuses_to_draft(narrow: Server) -> None:
    for asked in ({"enabled": True}, {"length": 3}, {"paths": 1}):
        error = error_of(narrow.http.post(CHAT, json={"messages": SEA, "speculative": asked}), 400)
        assert error["param"] == "speculative.enabled"
    error_of(narrow.http.post(CHAT, json={"messages": SEA, "speculative": {"drafter": "draft-model"}}), 400)
    assert narrow.chat(max_tokens=1)["speculative"]["enabled"] is False


def test_a_trace_says_where_tokens_come_from(server: Server) -> None:
    fields = {"max_tokens": 16, "temperature": 0, "speculative": DRAFTED | {"trace": True}}
    answer = server.chat(**fields)
    (choice,) = answer["choices"]
    pieces = choice["speculative"]["pieces"]
    assert "".join(piece["text"] for piece in pieces) == choice["message"]["content"]
    metrics = answer["metrics"]["speculative_decoding"]
    origins = [piece["origin"] for piece in pieces]
    assert origins.count("accepted") == metrics["num_accepted_draft_tokens"] == sum(metrics["per_step_accepted"])
    assert len(metrics["per_step_drafted"]) == metrics["num_spec_steps"]
    assert "speculative" not in server.chat(max_tokens=4)["choices"][0]
    plain = server.chat(**(fields | {"speculative": PLAIN | {"trace": True}}))["choices"][0]["speculative"]["pieces"]
    assert {piece["origin"] for piece in plain} == {"plain"}
    assert [piece["token"] for piece in plain] == [piece["token"] for piece in pieces]


def test_several_paths_and_drafters_are_named(start: Callable[..., Server]) -> None:
    server = start("--spec-draft-paths", "2")
    answer = server.chat(max_tokens=12, speculative={"length": 2})
    assert (answer["speculative"]["paths"], answer["speculative"]["rule"]) == (2, "pooled")
    assert server.chat(max_tokens=4, speculative={"paths": 1})["speculative"]["rule"] == "block"
    assert server.chat(max_tokens=4, speculative={"rule": "rsd"})["speculative"]["lossless"]
    prediction = {"type": "content", "content": "The sea is a vast"}
    answer = server.chat(max_tokens=12, temperature=0, prediction=prediction)
    assert answer["speculative"]["drafters"] == ["draft-model", "edit"]
    error_of(server.http.post(CHAT, json={"messages": SEA, "speculative": {"paths": 3}}), 400)
    error_of(server.http.post(CHAT, json={"messages": SEA, "speculative": {"rule": "block"}}), 400)
    server.stop()


def test_the_settings_are_told(server: Server) -> None:
    props = server.http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 1024 and props["total_slots"] == 4
    assert props["speculative"]["drafters"] == ["draft-model", "edit"]


def test_the_log_is_readable_and_tells_no_prompts_unless_asked_to(server: Server, start: Callable[..., Server]) -> None:
    talkative = start("--log-format", "json", "--log-prompts", drafter=None)
    for asked in (server, talkative):
        asked.complete(prompt="My secret is a Rhinoceros", max_tokens=1)
        wait_until(lambda: any("/v1/completions" in line for line in asked.lines), 3, "the request is logged")
    talkative.stop()
    assert not any("Rhinoceros" in line for line in server.lines)
    lines = [json.loads(line) for line in talkative.lines]
    assert any("Rhinoceros" in line.get("prompt", "") for line in lines)
    (request,) = [line for line in lines if line.get("path") == "/v1/completions"]
    assert (request["status"], request["method"], request["level"]) == (200, "POST", "INFO")
