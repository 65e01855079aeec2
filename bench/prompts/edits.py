#!/usr/bin/env python3
"""Make the edit tasks of this folder: an instruction and the code it is to change.

The answer to such a task repeats most of the code it is given. So each line has, beside the
prompt, that code as `prediction`: what a client knows of the answer before it is written.

The code is from HumanEval, which its authors publish and which is known by its SHA-256, and from
the small files in `edit_sources`. A bug to be fixed is planted here, by one replacement.
"""

import argparse
import ast
import gzip
import hashlib
import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HUMAN_EVAL = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
SOURCES = Path(__file__).resolve().parent / "edit_sources"
TASKS_MIN = 40
# A name that is renamed occurs so often, lest the task be a single change.
RENAMED_MIN = 6
# How the code block is marked, by the ending of the source's name.
LANGUAGES = {
    **{".py": "python", ".json": "json", ".toml": "toml"},
    **{".yaml": "yaml", ".ini": "ini", ".conf": "nginx"},
}
# What can tell whether a language's code is whole, where the standard library has it.
READERS = {"python": ast.parse, "json": json.loads, "toml": tomllib.loads}


class Task(NamedTuple):
    """An edit to ask for."""

    kind: str
    # The numbers of HumanEval's functions, which make one file, or the name of a source.
    source: tuple[int, ...] | str
    instruction: str
    # Text of the source that a bug replaces, and the bug.
    planted: tuple[str, str] | None = None


TASKS = (
    Task(
        "rename",
        "heapq_sift.py",
        "Rename the local variable `childpos` to `child_index`. Change it everywhere, also in the "
        "comments.",
    ),
    Task(
        "rename",
        "bisect_right.py",
        "Rename the parameter `lo` to `low` in both functions. Change it everywhere, also in the "
        "docstrings and in the error message.",
    ),
    Task(
        "rename",
        "csv_dict_writer.py",
        "Rename the parameter and attribute `fieldnames` to `columns` everywhere in this class, "
        "also in the error message.",
    ),
    Task(
        "rename",
        "queue_variants.py",
        "Rename the attribute `queue` to `items` in both classes. Do not rename the classes.",
    ),
    Task(
        "rename",
        "netrc_lexer.py",
        "Rename the local variable `ch` to `char` in all methods.",
    ),
    Task(
        "rename",
        (32,),
        "Rename the function `poly` to `evaluate`. Update every call and the docstring.",
    ),
    Task(
        "rename",
        (63,),
        "Rename the function `fibfib` to `tribonacci`. Update the recursive calls and the "
        "docstring.",
    ),
    Task(
        "rename",
        (140,),
        "Rename the local variable `new_text` to `result`.",
    ),
    Task(
        "type_hints",
        "calendar_months.py",
        "Add type hints to the parameters and return values of all functions. Years, months and "
        "days are `int`.",
    ),
    Task(
        "type_hints",
        "shlex_quote.py",
        "Add type hints to the parameters and return values of `split`, `join` and `quote`.",
    ),
    Task(
        "type_hints",
        "colorsys_hsv.py",
        "Add type hints to both functions. All parameters are `float`, and both return a tuple of "
        "three floats.",
    ),
    Task(
        "type_hints",
        (117,),
        "Add type hints to the parameters, to the return value and to the local variable `result`.",
    ),
    Task(
        "type_hints",
        (65, 76),
        "Add type hints to the parameters and return values of both functions.",
    ),
    Task(
        "docstrings",
        "getopt_options.py",
        "Add a one-line docstring to each of the four functions. Do not change anything else.",
    ),
    Task(
        "docstrings",
        "calendar_names.py",
        "Add a one-line docstring to both classes and to each of their methods.",
    ),
    Task(
        "docstrings",
        (12, 14, 18),
        "Add a short docstring to each function. Give one example call with its result in each.",
    ),
    Task(
        "docstrings",
        (155, 156),
        "Add a Google-style docstring with the sections `Args` and `Returns` to both functions.",
    ),
    Task(
        "error_handling",
        "genericpath_stat.py",
        "Make each function return `None` if `os.stat` raises an `OSError`. Mention this in the "
        "docstrings.",
    ),
    Task(
        "error_handling",
        (4, 21),
        "Raise a `ValueError` with a clear message if `numbers` is empty, in both functions. In "
        "`rescale_to_unit`, raise one as well if all numbers are equal.",
    ),
    Task(
        "error_handling",
        (44, 46),
        "Check the arguments first and raise a `ValueError` with a clear message: in "
        "`change_base` if `base` is not between 2 and 9, in `fib4` if `n` is negative.",
    ),
    Task(
        "error_handling",
        (105,),
        "Catch only `KeyError` instead of everything, and raise a `TypeError` at the start of the "
        "function if `arr` is not a list.",
    ),
    Task(
        "comprehension",
        "textwrap_indent.py",
        "Replace the inner function `prefixed_lines` with a generator expression in the call of "
        "`join`.",
    ),
    Task(
        "comprehension",
        (36, 104),
        "Replace the loops with comprehensions: in `fizz_buzz` a list comprehension for `ns` and "
        "`sum` with a generator expression for `ans`, in `unique_digits` a list comprehension.",
    ),
    Task(
        "comprehension",
        (78,),
        "Replace the loop with `sum` and a generator expression. Go over the digits, not over "
        "their indices.",
    ),
    Task(
        "comprehension",
        (58, 101),
        "Replace the loops with comprehensions: a set comprehension in `common`, a list "
        "comprehension in `words_string`.",
    ),
    Task(
        "fix_bug",
        "statistics_median.py",
        "`median([1, 3, 5, 7])` returns 6.0, but it should return 4.0. Fix the bug.",
        ("(data[i - 1] + data[i])", "(data[i] + data[i + 1])"),
    ),
    Task(
        "fix_bug",
        "quopri_hex.py",
        "`unhex(b'ff')` returns 85, but it should return 255. `unhex(b'FF')` is right. Fix the "
        "bug.",
        ("ord('a')-10", "ord('a')"),
    ),
    Task(
        "fix_bug",
        (1,),
        "`separate_paren_groups('() (())')` returns `['()', '()(())']`, but it should return "
        "`['()', '(())']`: each group also has all groups before it. Fix the bug.",
        ("\n                current_string.clear()", ""),
    ),
    Task(
        "fix_bug",
        (25,),
        "The last prime factor is sometimes missing: `factorize(70)` returns `[2, 5]`, but it "
        "should return `[2, 5, 7]`. Fix the bug.",
        ("    if n > 1:\n        fact.append(n)\n", ""),
    ),
    Task(
        "fix_bug",
        (129,),
        "For the first example the function returns `[2, 1, 2]` instead of `[1, 2, 1]`: the path "
        "has to start at the cell with the value 1. Fix the bug.",
        ("if i % 2 == 0:", "if i % 2 == 1:"),
    ),
    Task(
        "review",
        "filecmp_cmp.py",
        "Apply this review comment: extract the magic number 100 into a constant "
        "`MAX_CACHE_SIZE` at the top of the file.",
    ),
    Task(
        "review",
        "shutil_ids.py",
        "Apply this review comment to both functions: return early. Return `None` where the "
        "`KeyError` is caught, so that `result` need not be compared with `None`.",
    ),
    Task(
        "review",
        (38, 50),
        "Apply this review comment: extract the magic numbers into constants at the top of the "
        "file. Name the group length 3 `GROUP_SIZE` and the shift by 5 `SHIFT`.",
    ),
    Task(
        "review",
        (95,),
        "Apply these review comments: the parameter hides the built-in `dict`, so name it "
        "`mapping`; and write `not isinstance(...)` instead of comparing with `False`.",
    ),
    Task(
        "translate",
        "warehouse_de.py",
        "Translate this class from German to English: identifiers, comments, docstrings and error "
        "messages.",
    ),
    Task(
        "translate",
        "retry_de.py",
        "Translate the comments and docstrings from German to English. Do not change the code.",
    ),
    Task(
        "translate",
        "invoice_es.py",
        "Translate this file from Spanish to English: identifiers, dictionary keys, comments, "
        "docstrings and error messages. Call the tax rate `VAT`.",
    ),
    Task(
        "json",
        "users.json",
        "Rename all keys from camelCase to snake_case. Keep the values.",
    ),
    Task(
        "json",
        "services.json",
        'Add `"enabled": true` as the last field of every service.',
    ),
    Task(
        "json",
        "books.json",
        "Sort the books by `year`, oldest first. Keep one book per line and keep the ids.",
    ),
    Task(
        "config",
        "project.toml",
        'Set the version to 0.8.0, require Python 3.11 or newer, add the dependency "rich>=13.0" '
        "and remove the optional dependencies for plots.",
    ),
    Task(
        "config",
        "compose.yaml",
        "Update the images of `web`, `worker` and `scheduler` to 1.9.0 and the image of `db` to "
        "postgres:16. Set `LOG_LEVEL` to `debug` for all services that have it.",
    ),
    Task(
        "config",
        "backup.ini",
        "Turn notifications on, add ops@example.com to their recipients, set both timeouts to 60 "
        "and keep 14 daily backups.",
    ),
    Task(
        "config",
        "shop.conf",
        "Add the server 10.0.0.13:8080 to the upstream, allow only TLSv1.2 and TLSv1.3, turn gzip "
        "on, and raise the read timeout to 60s in both proxy locations.",
    ),
)


class Edit(NamedTuple):
    """One line of the set."""

    id: str
    task: str
    kind: str
    prompt: str
    prediction: str


def human_eval(path: Path) -> list[dict[str, str]]:
    """All functions, after checking that it is the expected file."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != HUMAN_EVAL:
        raise SystemExit(f"error: {path} has SHA-256 {found}; expected {HUMAN_EVAL}")
    return [json.loads(line) for line in gzip.decompress(content).decode().split("\n") if line]


def joined(functions: list[str]) -> str:
    """One file of several functions: what they import comes first and only once.

    Spaces that end a line go: no one would keep them in an edit, nor miss them.
    """
    modules: dict[str, set[str]] = {}
    bodies = []
    for function in functions:
        lines = [line.rstrip() for line in function.split("\n")]
        for node in ast.parse(function).body:
            if isinstance(node, ast.ImportFrom):
                modules.setdefault(f"from {node.module} import ", set()).update(
                    alias.name for alias in node.names
                )
            elif isinstance(node, ast.Import):
                modules.setdefault("import ", set()).update(alias.name for alias in node.names)
            else:
                continue
            lines[node.lineno - 1] = ""
        bodies.append("\n".join(lines).strip("\n"))
    imports = "\n".join(start + ", ".join(sorted(names)) for start, names in modules.items())
    return "\n\n\n".join([imports, *bodies] if imports else bodies)


def without_docstrings(code: str) -> str:
    """The code of functions that are to get docstrings."""
    lines = code.split("\n")
    functions = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]
    docstrings = [node.body[0] for node in functions if ast.get_docstring(node) is not None]
    for node in sorted(docstrings, key=lambda node: node.lineno, reverse=True):
        del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines)


def original(task: Task, functions: list[str]) -> str:
    """The code that the task is about, with the bug if it has one."""
    if isinstance(task.source, str):
        code = (SOURCES / task.source).read_text(encoding="utf-8").strip("\n")
    else:
        code = joined([functions[number] for number in task.source])
        if task.kind == "docstrings":
            code = without_docstrings(code)
    if task.planted is None:
        return code
    old, new = task.planted
    if code.count(old) != 1:
        raise SystemExit(f"error: {task.source} has {old!r} {code.count(old)} times, not once")
    return code.replace(old, new).strip("\n")


def returned(language: str, code: str) -> str:
    """The end of an instruction: what to answer with."""
    if language == "json":
        return "Return the whole document and only the JSON."
    if language != "python":
        return "Return the whole file and nothing else."
    match ast.parse(code).body:
        case [ast.FunctionDef()]:
            return "Return the whole function and only the code."
        case [ast.ClassDef()]:
            return "Return the whole class and only the code."
    return "Return the whole file and only the code."


def edit(task: Task, number: int, functions: list[str]) -> Edit:
    """The line of a task, after checking it."""
    code = original(task, functions)
    language = "python" if isinstance(task.source, tuple) else LANGUAGES[Path(task.source).suffix]
    try:
        READERS.get(language, str)(code)
    except (SyntaxError, ValueError) as error:
        raise SystemExit(f"error: {task.kind} of {task.source}: {error}") from error
    prompt = f"{task.instruction} {returned(language, code)}\n\n```{language}\n{code}\n```"
    wrong = wrongs(task, code, prompt)
    if wrong:
        raise SystemExit(f"error: {task.kind} of {task.source}: {', '.join(wrong)}")
    return Edit(f"edit/{task.kind}-{number}", "edit", task.kind, prompt, code)


def wrongs(task: Task, code: str, prompt: str) -> list[str]:
    """What would spoil the measurement of a task."""
    wrong = []
    if "```" in code:
        wrong.append("it would end its own block")
    if prompt.count(code) != 1:
        wrong.append("the prediction is not in the prompt just once")
    if task.kind == "rename":
        name = task.instruction.split("`")[1]
        if len(re.findall(rf"\b{name}\b", code)) < RENAMED_MIN:
            wrong.append(f"{name} is rare")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("human_eval", type=Path, help="human-eval: data/HumanEval.jsonl.gz")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    options = parser.parse_args()
    functions = [it["prompt"] + it["canonical_solution"] for it in human_eval(options.human_eval)]

    edits: list[Edit] = []
    numbers: Counter[str] = Counter()
    for task in TASKS:
        numbers[task.kind] += 1
        edits.append(edit(task, numbers[task.kind], functions))
    if len(edits) < TASKS_MIN or len({line.id for line in edits}) < len(edits):
        raise SystemExit(f"error: {len(edits)} tasks are too few, or two have the same id")
    # Kinds take turns, so that the first tasks are a fair sample of all.
    edits.sort(key=lambda line: int(line.id.rpartition("-")[2]))
    path = options.out / "edit.jsonl"
    lines = [json.dumps(line._asdict(), ensure_ascii=False) + "\n" for line in edits]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
    print(f"{path.name}: {len(edits)} prompts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
