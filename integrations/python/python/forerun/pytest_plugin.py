"""The pytest plug-in: a fixture that fails with the smallest counterexample."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ._check import Procedure, Report
from ._check import assert_lossless as _assert_lossless
from ._model import battery
from ._promise import Promise


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forerun-seeds", type=int, default=2, help="models of each kind and size to prove rules on"
    )


@pytest.fixture
def assert_lossless(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """``assert_lossless(rule)``: proves a rule over the battery of models. A lossy one fails, unless it
    keeps a promise: ``assert_lossless(rule, within=0.05)``."""
    seeds = int(request.config.option.forerun_seeds)

    def prove(procedure: Procedure, within: Promise = None) -> Report:
        __tracebackhide__ = True
        return _assert_lossless(procedure, battery(seeds), within)

    return prove
