#!/usr/bin/env python3
"""Record the agent loops of this folder with a server: requests as an agent sends them.

Three kinds of loop, taking turns, as an agent with one API key would run them:

* `repair`: write a function of HumanEval, run its tests, repair it, up to four turns;
* `summary`: say in a fixed form what the output of a tool shows;
* `form`: fill in the same JSON form for one message after another.

Each line of `agent.jsonl` is one request with all messages that came before it. The model's part in
them is greedy, so that a replay at temperature 0 writes what was recorded.

The functions are from HumanEval, which its authors publish and which is known by its SHA-256. What
the model writes is run: in a process of its own, with a time limit and in an empty folder.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from edits import human_eval

TURNS_MAX = 4
TOKENS_MAX = 512
TESTS_MAX_S = 10
# What an agent shows the model of a failed run.
SHOWN_LINES = 12

# Functions that a model of 1.5 B seldom gets right at once.
REPAIRED = (10, 32, 75, 83, 108, 120)

REPAIR = """Write this Python function. Answer with the whole function in one code block, and nothing else.

```python
{head}```"""

FAILED = """The tests fail:

```
{output}
```

Give the whole corrected function in one code block, and nothing else."""

SUMMARY = """You read the output of tools for a team of developers. Answer in this form, and with nothing else:

Tool: <name of the tool>
Status: <passed, failed or warning>
What happened: <one sentence>
Files concerned:
- <path>: <what is wrong with it>
Next step: <one sentence>

The output:

```
{output}
```"""

OUTPUTS = (
    """$ ruff check src
src/billing/invoice.py:14:8: F401 [*] `decimal.ROUND_DOWN` imported but unused
src/billing/invoice.py:88:5: F841 Local variable `gross` is assigned to but never used
src/billing/export.py:31:80: E501 Line too long (104 > 79)
Found 3 errors.
[*] 1 fixable with the `--fix` option.""",
    """$ pytest -q tests/billing
....F..F.                                                            [100%]
=================================== FAILURES ===================================
____________________________ test_rounds_half_even _____________________________
tests/billing/test_invoice.py:41: in test_rounds_half_even
    assert total(lines) == Decimal("10.12")
E   AssertionError: assert Decimal('10.13') == Decimal('10.12')
__________________________ test_export_escapes_commas __________________________
tests/billing/test_export.py:27: in test_export_escapes_commas
    assert row == '"Smith, Anna",10.12'
E   AssertionError: assert 'Smith, Anna,10.12' == '"Smith, Anna",10.12'
=========================== short test summary info ============================
FAILED tests/billing/test_invoice.py::test_rounds_half_even
FAILED tests/billing/test_export.py::test_export_escapes_commas
2 failed, 7 passed in 0.41s""",
    """$ mypy src
src/billing/invoice.py:52: error: Argument 1 to "quantize" of "Decimal" has incompatible type "str"
src/billing/export.py:19: error: Missing return statement  [return]
Found 2 errors in 2 files (checked 11 source files)""",
    """$ cargo build
   Compiling ledger v0.3.0 (/home/dev/ledger)
warning: unused variable: `currency`
  --> src/parse.rs:71:9
   |
71 |     let currency = fields.next();
   |         ^^^^^^^^ help: if this is intentional, prefix it with an underscore: `_currency`
warning: `ledger` (lib) generated 1 warning
    Finished `dev` profile [unoptimized + debuginfo] target(s) in 4.02s""",
    """$ docker build -t billing .
 => [4/6] RUN pip install -r requirements.txt                            12.4s
 => ERROR [5/6] RUN python -m compileall src                              0.9s
------
 > [5/6] RUN python -m compileall src:
*** Error compiling 'src/billing/tax.py'...
  File "src/billing/tax.py", line 23
    if country = "AT":
       ^^^^^^^
SyntaxError: invalid syntax. Maybe you meant '==' or ':=' instead of '='?""",
    """$ pytest -q tests/billing
.........                                                            [100%]
=============================== warnings summary ===============================
tests/billing/test_tax.py::test_reduced_rate
  src/billing/tax.py:44: DeprecationWarning: datetime.utcnow() is deprecated
9 passed, 1 warning in 0.38s""",
)

FORM = """Read the message of a customer and fill in this form. Answer with the JSON alone, all fields in this order.

{{
  "customer": {{
    "name": "<name, or unknown>",
    "language": "<language of the message>",
    "reached_by": "email"
  }},
  "request": {{
    "category": "<delivery, payment, return, defect or question>",
    "order_number": "<number, or none>",
    "products": ["<product>"],
    "urgent": <true or false>
  }},
  "handling": {{
    "department": "<logistics, accounting, service or sales>",
    "needs_human": <true or false>,
    "next_step": "<one short sentence>"
  }}
}}

The message:

{message}"""

MESSAGES = (
    "Hello, my order 48213 should have been here on Monday. It is a desk lamp, a present for tomorrow! Where is it? "
    "Anna Smith",
    "Hi, I was charged twice for order 48377 (two office chairs). Please refund one of the payments. Regards, "
    "Peter Olsen",
    "Good morning, the coffee grinder from order 47905 makes a terrible noise and stops after ten seconds. I would like a "
    "new one. Maria Conti",
    "Do you also sell the desk lamp in green? And does the bulb come with it? Thanks, Jon Bell",
    "I want to return the two office chairs of order 48377. They are too high for our table. How do I do that? "
    "Peter Olsen",
    "Order 48410, one electric kettle: the parcel was open when it came and the lid is missing. I need it this week. "
    "Lena Fischer",
    "My bank says the payment for order 48455 failed, but I get reminders. Please check. It was a coffee grinder. "
    "Tomasz Nowak",
    "Hello, could you send order 48466 (a desk lamp and an electric kettle) to my office instead of my home? It is "
    "urgent, I leave on Friday. Sara Lind",
)


class Request(NamedTuple):
    """What an agent asks at one point of a loop."""

    id: str
    task: str
    kind: str
    messages: list[dict[str, str]]
    # The answer ends by itself.
    ends: bool = True


class Agent:
    """A model behind an OpenAI-compatible server, asked for its likeliest text."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Request] = []

    def ask(self, kind: str, name: str, messages: list[dict[str, str]]) -> str | None:
        """Return the answer and record the request, unless the answer has no end."""
        body = {"messages": messages, "temperature": 0, "max_tokens": TOKENS_MAX}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            choice = json.load(response)["choices"][0]
        print(f"{name}: {choice['finish_reason']}", file=sys.stderr)
        if choice["finish_reason"] != "stop":
            return None
        self.asked.append(Request(f"agent/{name}", "agent", kind, list(messages)))
        return choice["message"]["content"]


def of_user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def repair(agent: Agent, number: int, function: dict[str, str]) -> None:
    """Have a function written and repaired until its tests pass."""
    messages = [of_user(REPAIR.format(head=function["prompt"]))]
    for turn in range(1, TURNS_MAX + 1):
        answer = agent.ask("repair", f"repair-{number}/{turn}", messages)
        failure = answer and run_tests(answer, function)
        if answer is None or failure is None:
            return
        messages += [
            {"role": "assistant", "content": answer},
            of_user(FAILED.format(output=failure)),
        ]


def run_tests(answer: str, function: dict[str, str]) -> str | None:
    """Return what the tests print if they fail."""
    block = re.search(r"```(?:python)?\n(.*?)```", answer, re.DOTALL)
    code = block.group(1) if block else answer
    program = f"{code}\n\n{function['test']}\n\ncheck({function['entry_point']})\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "solution.py"
        path.write_text(program, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-I", path.name],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TESTS_MAX_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"TimeoutError: no answer after {TESTS_MAX_S} seconds"
        output = done.stderr.replace(folder + "/", "")
        return "\n".join(output.splitlines()[-SHOWN_LINES:]) if done.returncode else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("human_eval", type=Path, help="human-eval: data/HumanEval.jsonl.gz")
    parser.add_argument("--url", default="http://localhost:8080", help="the server")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args()
    functions = human_eval(options.human_eval)

    agent = Agent(options.url)
    # Kinds take turns, so that the first requests are a fair sample of all.
    for number, (index, output, text) in enumerate(zip_longest(REPAIRED, OUTPUTS, MESSAGES), 1):
        if index is not None:
            repair(agent, number, functions[index])
        if output is not None:
            agent.ask("summary", f"summary-{number}", [of_user(SUMMARY.format(output=output))])
        agent.ask("form", f"form-{number}", [of_user(FORM.format(message=text))])

    path = options.out / "agent.jsonl"
    lines = [json.dumps(it._asdict(), ensure_ascii=False) + "\n" for it in agent.asked]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(lines)} requests, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
