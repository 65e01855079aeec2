"""Keeps generated requests short: schemathesis loads this (SCHEMATHESIS_HOOKS, see test_openapi.py)."""

from typing import Any

import schemathesis

STREAM = "text/event-stream"

# Paths beside those of /v1 that make an output, and what its length is called there.
LENGTHS = {"/completion": "n_predict", "/infill": "n_predict"}


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Few tokens and answers, and no made-up model, which would be all that is refused. What is wrong stays wrong."""
    body = case.body
    if not isinstance(body, dict) or not case.path.startswith(("/v1/", *LENGTHS)):
        return
    if isinstance(body.get("model"), str):
        del body["model"]
    # As long as the document knows no streams, each would fail; test_openapi.py says so once.
    if STREAM not in case.operation.definition.raw["responses"]["200"]["content"]:
        body.pop("stream", None)
        body.pop("stream_options", None)
    for name in ("n", "n_cmpl"):
        if type(body.get(name)) is int and 2 < body[name] <= 16:
            body[name] = 2
    length = LENGTHS.get(case.path, "max_tokens")
    names = [name for name in ("max_tokens", "max_completion_tokens", length) if name in body] or [length]
    for name in names:
        if body.get(name) is None or type(body[name]) is int and body[name] > 4:
            body[name] = 4
