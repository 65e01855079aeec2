#!/usr/bin/env python3
"""Writes what README.md, docs/speed.md and docs/pairs.md say of speed, from bench/serve/answers.json and bench/reports.

Without arguments it writes their sections and the pictures in docs. With --check it changes nothing and fails if they
differ from the reports; CI runs it this way.
"""

import argparse
import json
import sys
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# What stands around the text that this program writes.
MARKS = ("<!-- {}: written by docs/claims.py -->", "<!-- end of {} -->")
# One row of the table and of the picture for each pair and temperature; the columns in this order. What the
# controller does is shown for itself, whatever the rule.
CONTROLLER = "controller"
COLUMNS = {
    CONTROLLER: "#1c2024",
    "block": "#0b5fa5",
    "pooled": "#1a7f45",
}


@dataclass(frozen=True)
class Speedup:
    """A figure and its 95 % interval."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass
class Row:
    """What one drafter gains at one temperature."""

    report: str
    target: str
    drafter: str
    temperature: float
    plain: float
    speedups: dict[str, Speedup]
    tokens: dict[str, float]


def rows(report: dict[str, Any], name: str) -> list[Row]:
    """The rows of a report: of settings that differ in length or paths, the fastest of each column."""
    settings = {setting["name"]: setting for setting in report["config"]["settings"]}
    cells = [cell for cell in report["cells"] if cell["task"] is None]
    target = report["config"]["target"]["name"].removesuffix(".gguf")
    plain = {c["temperature"]: c["tokens_per_second"] for c in cells if not settings[c["setting"]]["drafters"]}
    found: dict[tuple[str, float], Row] = {}
    for cell in cells:
        setting, speedup = settings[cell["setting"]], cell["speedup"]
        column = CONTROLLER if setting["adaptive"] else setting["rule"]
        if not setting["drafters"] or speedup is None or column not in COLUMNS:
            continue
        drafter = " + ".join(setting["drafters"]).replace(".gguf", "")
        at = cell["temperature"]
        row = found.setdefault((drafter, at), Row(name, target, drafter, at, plain[at], {}, {}))
        figure = Speedup(speedup["value"], speedup["low"], speedup["high"])
        if column not in row.speedups or figure.value > row.speedups[column].value:
            row.speedups[column] = figure
            row.tokens[column] = cell["block_efficiency"]
    return sorted(found.values(), key=lambda row: (row.drafter, row.temperature))


def table(all_rows: list[Row]) -> str:
    """The table of all pairs."""
    head = "| target | drafter | T | plain, tokens/s | " + " | ".join(COLUMNS) + " | tokens per round, block |"
    lines = [head, "|---|---|--:|--:|" + "--:|" * (len(COLUMNS) + 1)]
    for row in all_rows:
        cells = [str(row.speedups.get(column, "–")) for column in COLUMNS]
        target = f"[{row.target}](../bench/reports/{row.report}.html)"
        tokens = f"{row.tokens['block']:.2f}" if "block" in row.tokens else "–"
        about = [target, row.drafter, f"{row.temperature:g}", f"{row.plain:.1f}", *cells, tokens]
        lines.append("| " + " | ".join(about) + " |")
    return "\n".join(lines)


def section(reports: dict[str, dict[str, Any]]) -> str:
    """What stands between the marks in docs/speed.md."""
    all_rows = [row for name, report in reports.items() for row in rows(report, name)]
    machines = {f"{it['config']['machine']['processor']}, {it['config']['machine']['threads']} threads" for it in reports.values()}
    tasks = sorted({prompt["task"] for report in reports.values() for prompt in report["config"]["prompts"][: report["prompts"]]})
    short = [
        f"{name} covers {it['prompts']} of {len(it['config']['prompts'])} prompts"
        for name, it in reports.items()
        if it["prompts"] < len(it["config"]["prompts"])
    ]
    without = [name for name, it in reports.items() if "AMX_INT8 = 1" not in it["config"]["build"]["processor_features"]]
    amx = f"Measured with a build that does not use the processor's AMX: {', '.join(without)}." if without else ""
    widened = any(name.startswith("widened") for name in reports)
    stand_ins = """Widened targets are SmolLM2 with wider feed-forward layers that leave its output as it is
        ([models/README.md](../models/README.md)): the weights are real, the size is artificial.""" if widened else ""
    unfinished = f"The time was up before all was measured: {'; '.join(short)}." if short else ""
    about = f"""The table shows the speedup over plain decoding of the same prompts in the same run, with 95 % confidence
        intervals. *controller*: Forerun adapts the draft length, which is the default. *block* and *pooled*: the draft length
        is fixed at four tokens, even if that is slower, and the draft is verified with that rule, on one path (block) or two
        (pooled). The reports have the other rules. *edit* drafts from code in the prompt, *prediction* from code that the
        request sends along, *oracle* from the finished output, which no drafter knows, *suffix* from what followed the
        same tokens before, and *suffix-shared* also from outputs for earlier prompts; all up to 31 tokens. {stand_ins}
        Tasks: {", ".join(tasks)}. Machine: {"; ".join(sorted(machines))}. {unfinished} {amx} Measured by `just pairs`."""
    return f"""{textwrap.fill(" ".join(about.split()), 120)}

{table(all_rows)}

![The speedups of the table with their intervals](speedups.svg)"""


def picture(reports: dict[str, dict[str, Any]]) -> str:
    """Points with their intervals, a group for each pair and temperature."""
    all_rows = [row for name, report in reports.items() for row in rows(report, name)]
    groups = [(row, [(column, row.speedups[column]) for column in COLUMNS if column in row.speedups]) for row in all_rows]
    most = max([2.0] + [it.high or it.value for _, points in groups for _, it in points])
    width, left, line, y = 720, 120, 22, 36
    scale = (width - left - 150) / most
    parts: list[str] = []
    for row, points in groups:
        y += 12
        parts.append(f'<text x="8" y="{y}" class="head">{escape(row.target)} ← {escape(row.drafter)}, T = {row.temperature:g}</text>')
        for column, it in points:
            y += line
            x = left + scale * it.value
            low, high = (left + scale * (end if end is not None else it.value) for end in (it.low, it.high))
            parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{column}</text>')
            parts.append(f'<path d="M{low:.1f} {y}H{high:.1f}" stroke="{COLUMNS[column]}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{COLUMNS[column]}"/>')
            parts.append(f'<text x="{width - 8}" y="{y + 4}" text-anchor="end">{it}</text>')
        y += line
    one = left + scale
    height = y + 8
    style = "text{font:14px system-ui,sans-serif;fill:#1c2024}.head{font-weight:600}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>Speedup over plain decoding, with 95 % intervals</title>\n<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f'<text x="{one:.1f}" y="18" text-anchor="middle">1 = plain decoding</text>\n'
        f'<path d="M{one:.1f} 24V{height}" stroke="#60676e" stroke-dasharray="4 4"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


# What the README's picture compares, with a colour each for a light and a dark page.
WAYS = {
    "llama-server": ("llama.cpp", "#8a929b", "#6e7681"),
    "llama-server, n-gram drafts": ("llama.cpp, n-gram drafts", "#d08770", "#db8e6e"),
    "forerun": ("Forerun", "#0b5fa5", "#58a6ff"),
}


def bars(cells: list[dict[str, Any]], dark: bool) -> str:
    """Tokens a second by kind of prompt: a bar for each way."""
    ink, page = ("#e6edf3", "#0d1117") if dark else ("#1c2024", "#ffffff")
    most = max(cell["rate"] for cell in cells)
    width, left, y = 720, 210, 40
    scale = (width - left - 110) / most
    parts, seen = [], ""
    for cell in cells:
        name, *colours = WAYS[cell["way"]]
        if cell["kind"] != seen:
            seen, y = cell["kind"], y + (18 if seen else 0)
            parts.append(f'<text x="12" y="{y + 17}" class="kind">{seen}</text>')
        length = scale * cell["rate"]
        times = "" if cell["way"] == "llama-server" else f" · {cell['speedup'][0]:.2f}×"
        label = f'<tspan class="kind">{cell["rate"]:.1f}{times}</tspan>' if cell["way"] == "forerun" else f"{cell['rate']:.1f}{times}"
        parts.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="19" rx="2" fill="{colours[dark]}"/>')
        parts.append(f'<text x="{left + length + 8:.1f}" y="{y + 17}">{label}</text>')
        y += 26
    height = y + 14
    style = f"text{{font:14px system-ui,sans-serif;fill:{ink}}}.kind{{font-weight:600}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>Tokens per second by kind of prompt</title>\n<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" fill="{page}"/>\n'
        f'<text x="12" y="22">Tokens per second, and how many times llama.cpp\'s</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def answered(report: dict[str, Any]) -> str:
    """What stands between the marks in README.md."""
    about, cells = report["about"], report["cells"]
    own = {cell["kind"]: cell for cell in cells if cell["way"] == "forerun"}
    over = {kind: Speedup(*cell["speedup"][:3]) for kind, cell in own.items()}
    drafts = {kind: Speedup(*cell["over_drafts"][:3]) for kind, cell in own.items()}
    counts = ", ".join(f"{cell['speedup'][3]} {kind}" for kind, cell in own.items())
    said = f"""Qwen2.5-Coder-1.5B-Instruct (Q4_K_M) on {about["machine"]["threads"]} threads of a server processor, one user,
        greedy, **no draft model**. Times llama.cpp without drafts, with 95 % intervals: {over["edits"]} for edits of code,
        {over["code"]} for new code, {over["chat"]} for chat. Times llama.cpp with its best n-gram drafts: {drafts["edits"]},
        {drafts["code"]} and {drafts["chat"]}.
        Measured side by side in one run by `just answers` ({counts}; [all answers](bench/serve/answers.md)); other models,
        draft models and temperatures are in [docs/speed.md](docs/speed.md)."""
    return f"""<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/answers-dark.svg">
  <img alt="Tokens per second of llama.cpp, llama.cpp with n-gram drafts, and Forerun, for edits, code and chat" src="docs/answers-light.svg">
</picture>

{textwrap.fill(" ".join(said.split()), 120)}"""


def pays(it: Speedup) -> str:
    """What an interval says of a drafter."""
    if it.low is None or it.high is None:
        return "not known"
    return "yes" if it.low > 1 else "no" if it.high < 1 else "not shown"


def verdicts(reports: dict[str, dict[str, Any]]) -> str:
    """What stands between the marks in docs/pairs.md: what the default settings gain with each drafter."""
    lines = ["| target | drafter | T | speedup | pays? |", "|---|---|--:|--:|---|"]
    all_rows = (row for name, report in reports.items() for row in rows(report, name))
    for row in sorted(all_rows, key=lambda row: (row.target, row.drafter, row.temperature)):
        # What no drafter knows is no drafter to choose.
        if CONTROLLER in row.speedups and row.drafter != "oracle":
            gain = row.speedups[CONTROLLER]
            target = f"[{row.target}](../bench/reports/{row.report}.html)"
            lines.append(f"| {target} | {row.drafter} | {row.temperature:g} | {gain} | {pays(gain)} |")
    about = """Speedup over plain decoding with the controller, which is the default, and its 95 % interval. *yes*: all of the
        interval is above 1; *no*: all of it is below; *not shown*: 1 is inside. The drafters without a file (*edit*, *prediction*,
        *suffix*, *ngram*) are explained in [decoding](decoding.md#drafters). Widened targets are SmolLM2 with wider layers of no
        effect: the size is artificial. How it was measured, and all other figures, are in [speed](speed.md)."""
    return textwrap.fill(" ".join(about.split()), 120) + "\n\n" + "\n".join(lines)


def between_marks(path: Path, section: str, name: str = "speed") -> str:
    """The file with another section between its marks."""
    first, last = (mark.format(name) for mark in MARKS)
    before, begin, rest = path.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        sys.exit(f"{path.name} has no {first} … {last}")
    return f"{before}{first}\n{section}\n{last}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if something differs")
    check = parser.parse_args().check
    files = sorted((REPOSITORY / "bench/reports").glob("*.json"))
    reports = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    answers = json.loads((REPOSITORY / "bench/serve/answers.json").read_text(encoding="utf-8"))
    readme, docs = REPOSITORY / "README.md", REPOSITORY / "docs"
    wanted = {
        readme: between_marks(readme, answered(answers)),
        docs / "answers-light.svg": bars(answers["cells"], dark=False),
        docs / "answers-dark.svg": bars(answers["cells"], dark=True),
        docs / "speed.md": between_marks(docs / "speed.md", section(reports)),
        docs / "pairs.md": between_marks(docs / "pairs.md", verdicts(reports), "pairs"),
        docs / "speedups.svg": picture(reports),
    }
    stale = [path for path, now in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != now]
    if check and stale:
        names = ", ".join(str(path.relative_to(REPOSITORY)) for path in stale)
        sys.exit(f"{names}: not what bench says; run `just claims`")
    for path in [] if check else stale:
        path.write_text(wanted[path], encoding="utf-8")


if __name__ == "__main__":
    main()
