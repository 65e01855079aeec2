"""Traces of a real server, as a collector gets them: read with OpenTelemetry's own schema."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import DRAFTED, SEA, TARGET, Server, wait_until
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
RECORDED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


class Collector:
    """Takes spans by OTLP over HTTP, as OpenTelemetry's collector does."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.services: set[str] = set()
        self.status = 200
        self.refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                taken = self.path == "/v1/traces" and self.headers["content-type"] == "application/json"
                outer.take(body) if taken and outer.status == 200 else outer.refuse()
                self.send_response(outer.status if taken else 404)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def refuse(self) -> None:
        self.refused += 1

    def take(self, body: bytes) -> None:
        # Fails on a field or a kind of value that the schema does not have.
        json_format.Parse(body, ExportTraceServiceRequest())
        for resource in json.loads(body)["resourceSpans"]:
            self.services.add(attributes(resource["resource"])["service.name"])
            self.spans += [span for scope in resource["scopeSpans"] for span in scope["spans"]]

    def span(self, response_header: str) -> dict[str, Any]:
        """The span that a response names."""
        name = response_header.split("-")[2]
        found = lambda: [span for span in self.spans if span["spanId"] == name]  # noqa: E731
        [span] = wait_until(found, 10, "the span of the response")
        return span


def attributes(of: dict[str, Any]) -> dict[str, Any]:
    """Attributes by name, without the kinds of their values."""
    kinds = {"intValue": int, "arrayValue": lambda it: [next(iter(value.values())) for value in it["values"]]}
    values = {}
    for attribute in of["attributes"]:
        [(kind, value)] = attribute["value"].items()
        values[attribute["key"]] = kinds.get(kind, lambda it: it)(value)
    return values


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.http.shutdown()


@pytest.fixture(scope="module")
def traced(start: Callable[..., Server], collector: Collector) -> Server:
    return start("--otlp-traces-endpoint", collector.url, "--otlp-service-name", "tests")


def test_a_request_is_a_span_of_its_clients_trace(traced: Server, collector: Collector) -> None:
    body = {"messages": SEA, "max_tokens": 24, "temperature": 0, "speculative": DRAFTED}
    answer = traced.http.post("/v1/chat/completions", json=body, headers=RECORDED)
    version, trace, _, flags = answer.headers["traceresponse"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    span = collector.span(answer.headers["traceresponse"])
    assert (span["traceId"], span["parentSpanId"], span["traceState"]) == (TRACE, PARENT, "vendor=1")
    assert (span["name"], span["kind"]) == (f"chat {TARGET}", 2)
    assert collector.services == {"tests"}
    usage, timings, said = answer.json()["usage"], answer.json()["timings"], attributes(span)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": TARGET,
        "gen_ai.request.max_tokens": 24,
        "gen_ai.request.temperature": 0,
        "gen_ai.response.finish_reasons": [answer.json()["choices"][0]["finish_reason"]],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "forerun.draft_tokens": timings["draft_n"],
        "forerun.accepted_tokens": timings["draft_n_accepted"],
        "http.response.status_code": 200,
    }
    assert {name: said.get(name) for name in expected} == expected
    rounds = [attributes(event) for event in span["events"]]
    assert sum(event["forerun.committed_tokens"] for event in rounds) == usage["completion_tokens"]
    assert sum(event["forerun.accepted_tokens"] for event in rounds) == timings["draft_n_accepted"] > 0
    took = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
    assert 0 < said["gen_ai.latency.time_to_first_token"] < took < 60
    # Nothing of what was said is sent.
    assert "sea" not in json.dumps(span).lower()
    # The log names the trace too.
    assert any(TRACE in line for line in traced.lines)


def test_a_stream_ends_its_span_when_it_ends(traced: Server, collector: Collector) -> None:
    body = {"messages": SEA, "max_tokens": 32, "stream": True}
    with traced.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert len(list(answer.iter_lines())) > 3
    span = collector.span(answer.headers["traceresponse"])
    assert "parentSpanId" not in span and span["traceId"] != TRACE
    assert attributes(span)["gen_ai.usage.output_tokens"] <= 32


def test_what_is_not_recorded_is_not_sent(traced: Server, collector: Collector) -> None:
    quiet = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    answer = traced.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=quiet)
    assert answer.status_code == 200 and "traceresponse" not in answer.headers
    # One that is recorded comes after it.
    before = len(collector.spans)
    wrong = traced.http.post("/v1/completions", json={"prompt": 5}, headers=RECORDED)
    span = collector.span(wrong.headers["traceresponse"])
    assert len(collector.spans) == before + 1
    assert attributes(span)["http.response.status_code"] == 400


def test_a_collector_that_fails_harms_nobody(traced: Server, collector: Collector) -> None:
    collector.status = 503
    before = collector.refused
    try:
        for _ in range(2):
            assert traced.complete(prompt="a", max_tokens=1)["usage"]["completion_tokens"] == 1
            wait_until(lambda: collector.refused > before, 10, "the collector to refuse spans")
        warned = [line for line in traced.lines if "traces cannot be sent" in line]
        assert len(warned) == 1 and "503" in warned[0]
    finally:
        collector.status = 200
    answer = traced.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    collector.span(answer.headers["traceresponse"])
    wait_until(lambda: any("traces are sent again" in line for line in traced.lines), 10, "a line in the log")


def test_the_last_spans_are_sent_before_the_server_ends(start: Callable[..., Server], collector: Collector) -> None:
    server = start("--otlp-traces-endpoint", f"{collector.url}/v1/traces", drafter=None)
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    server.stop()
    assert server.wait() == 0
    collector.span(answer.headers["traceresponse"])


def test_what_is_no_collector_is_said_at_the_start() -> None:
    with pytest.raises(pytest.fail.Exception, match="https is not supported"):
        Server("--otlp-traces-endpoint", "https://collector.example/v1/traces")
