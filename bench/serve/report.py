"""What is made of a load test's readings: tables, plots and the report. Nothing is measured here."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

# Chunks that come so close together are one arrival: llama-server sends a round's tokens one by
# one, Forerun all in one chunk, and a reader sees them at once in both cases.
TOGETHER_S = 0.002
RESAMPLES = 2000
WAYS = {
    "forerun": "Forerun",
    "forerun-plain": "Forerun, plain",
    "llama": "llama-server, drafts",
    "llama-plain": "llama-server, plain",
}
THEIRS = ("llama", "llama-plain")
# Told apart by colour, by mark and by line, so that print without colour does too.
LOOKS = {
    "forerun": {"color": "#0b5fa5", "marker": "o", "linestyle": "-", "linewidth": 2.4},
    "forerun-plain": {"color": "#5aa7dd", "marker": "s", "linestyle": "--", "linewidth": 1.8},
    "llama": {"color": "#b3470a", "marker": "^", "linestyle": "-", "linewidth": 1.8},
    "llama-plain": {"color": "#e39a4f", "marker": "v", "linestyle": "--", "linewidth": 1.8},
}
PAIR_TITLES = {
    "edits": "Qwen2.5-Coder-1.5B, edits of code and chats in turns, no draft model",
    "widened": "the widened target (1.4 GB), chats, with a draft model",
}


def arrivals(request: dict[str, Any]) -> list[tuple[float, int]]:
    """When how many tokens came; chunks that came together count as one."""
    merged: list[list[float]] = []
    last = -1.0
    for at, count in request["chunks"]:
        if merged and at - last < TOGETHER_S:
            merged[-1][1] += count
        else:
            merged.append([at, count])
        last = at
    return [(at, int(count)) for at, count in merged]


def first_token(request: dict[str, Any]) -> list[float]:
    """Seconds from sending the request to its first text."""
    return [at for at, _ in request["chunks"][:1]]


def gaps(request: dict[str, Any]) -> list[float]:
    """Seconds between arrivals."""
    times = [at for at, _ in arrivals(request)]
    return [after - before for before, after in zip(times, times[1:], strict=False)]


def per_token(request: dict[str, Any]) -> list[float]:
    """Seconds between tokens: those that arrive together share the gap before them."""
    counts = [count for _, count in arrivals(request)[1:]]
    pairs = zip(gaps(request), counts, strict=True)
    return [gap / count for gap, count in pairs for _ in range(count)]


MEASURES = {"first": first_token, "token": per_token, "gap": gaps}


class Readings:
    """The readings of one pair of models."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.random = np.random.default_rng(1)
        self.blocks: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for block in raw["blocks"]:
            self.blocks.setdefault((block["way"], block["users"]), []).append(block)
        self.ways = [way for way in WAYS if any(way == name for name, _ in self.blocks)]
        self.users = sorted({users for _, users in self.blocks})
        # What is measured of each request, by block.
        self.values = {
            (measure, *key): [[of(request) for request in block["requests"]] for block in blocks]
            for measure, of in MEASURES.items()
            for key, blocks in self.blocks.items()
        }

    def rate(self, way: str, users: int, chosen: list[int] | None = None) -> float:
        """Tokens a second of all users together, over the chosen blocks."""
        blocks = self.blocks[way, users]
        blocks = blocks if chosen is None else [blocks[index] for index in chosen]
        made = sum(request["tokens"] for block in blocks for request in block["requests"])
        return made / sum(block["seconds"] for block in blocks)

    def quantile(self, measure: str, way: str, users: int, share: float) -> float:
        """A quantile over all tokens or requests of a level."""
        blocks = self.values[measure, way, users]
        flat = [value for block in blocks for request in block for value in request]
        return float(np.quantile(flat, share)) if flat else float("nan")

    def best(self, users: int) -> str | None:
        """llama-server's way with more tokens a second."""
        theirs = [way for way in THEIRS if (way, users) in self.blocks]
        return max(theirs, key=lambda way: self.rate(way, users), default=None)

    def rate_ratio(self, one: str, other: str, users: int) -> tuple[float, float, float]:
        """How much faster one way is, with its interval over blocks, which are paired."""
        count = len(self.blocks[one, users])
        drawn = self.random.integers(0, count, (RESAMPLES, count)).tolist()
        ratios = [self.rate(one, users, it) / self.rate(other, users, it) for it in drawn]
        low, high = np.quantile(ratios, [0.025, 0.975])
        return self.rate(one, users) / self.rate(other, users), float(low), float(high)

    def median_ratio(self, measure: str, one: str, other: str, users: int) -> tuple[float, ...]:
        """Ratio of medians, with its interval over blocks and the requests within."""
        pairs = [self.values[measure, way, users] for way in (one, other)]
        count = len(pairs[0])
        ratios = []
        for _ in range(RESAMPLES // 4):
            blocks = self.random.integers(0, count, count)
            medians = [np.median(self.resampled([of[index] for index in blocks])) for of in pairs]
            ratios.append(medians[0] / medians[1])
        low, high = np.quantile(ratios, [0.025, 0.975])
        middle = [self.quantile(measure, way, users, 0.5) for way in (one, other)]
        return middle[0] / middle[1], float(low), float(high)

    def resampled(self, blocks: list[list[list[float]]]) -> np.ndarray:
        """Values of requests drawn with replacement within each block."""
        drawn = []
        for block in blocks:
            chosen = self.random.integers(0, len(block), len(block))
            drawn += [value for index in chosen for value in block[index]]
        return np.array(drawn)

    def requests(self, way: str, users: int | None = None) -> list[dict[str, Any]]:
        """All requests of a way, or of one of its levels."""
        keys = [key for key in self.blocks if key[0] == way and users in (None, key[1])]
        return [it for key in keys for block in self.blocks[key] for it in block["requests"]]

    def failed(self) -> int:
        """Requests that did not bring all their tokens and a proper end."""
        wanted = self.raw["settings"]["output"]
        requests = [it for way in self.ways for it in self.requests(way)]
        well = [it["done"] and not it["error"] and it["tokens"] == wanted for it in requests]
        return well.count(False)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["--:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def ratio(values: tuple[float, ...]) -> str:
    # A block without a single good request has no median, and then there is no interval.
    interval = "" if np.isnan(values[1:]).any() else f" ({values[1]:.2f}–{values[2]:.2f})"
    return f"{values[0]:.2f}{interval}"


def rates(readings: Readings) -> str:
    """Tokens a second by users, and how the ways compare."""
    head = ["users", *(WAYS[way] for way in readings.ways)]
    compared = "forerun" in readings.ways
    plain = compared and "forerun-plain" in readings.ways
    head += ["Forerun over plain"] if plain else []
    head += ["over llama-server's better way"] if compared and readings.best(readings.users[0]) else []
    rows = []
    for users in readings.users:
        row = [str(users), *(f"{readings.rate(way, users):.1f}" for way in readings.ways)]
        row += [ratio(readings.rate_ratio("forerun", "forerun-plain", users))] if plain else []
        if compared and (best := readings.best(users)):
            row.append(ratio(readings.rate_ratio("forerun", best, users)))
        rows.append(row)
    return table(head, rows)


def latencies(readings: Readings, measure: str, unit_s: float, digits: int) -> str:
    """Medians and 99th percentiles by users."""
    compared = "forerun" in readings.ways and readings.best(readings.users[0])
    head = ["users", *(WAYS[way] for way in readings.ways)]
    head += ["median over llama-server's"] if compared else []
    rows = []
    for users in readings.users:
        row = [str(users)]
        for way in readings.ways:
            values = [readings.quantile(measure, way, users, share) / unit_s for share in (0.5, 0.99)]
            row.append(f"{values[0]:.{digits}f} / {values[1]:.{digits}f}")
        if compared:
            best = readings.best(users)
            row.append(ratio(readings.median_ratio(measure, "forerun", best, users)))
        rows.append(row)
    return table(head, rows)


def drafts(readings: Readings) -> str:
    """How much was drafted and accepted, by users."""
    head = ["users"]
    ways = [way for way in readings.ways if way in ("forerun", "llama")]
    for way in ways:
        head += [f"{WAYS[way]}: drafted per token", "accepted", "tokens per arrival"]
    rows = []
    for users in readings.users:
        row = [str(users)]
        for way in ways:
            requests = readings.requests(way, users)
            drafted = sum(request.get("drafted", 0) for request in requests)
            accepted = sum(request.get("accepted", 0) for request in requests)
            made = sum(request["tokens"] for request in requests)
            came = [count for request in requests for _, count in arrivals(request)]
            row.append(f"{drafted / made:.2f}")
            row.append(f"{100 * accepted / drafted:.0f} %" if drafted else "–")
            row.append(f"{sum(came) / len(came):.2f}")
        rows.append(row)
    return table(head, rows)


def style() -> None:
    plt.rcParams.update({
        "font.family": "sans-serif",
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "svg.fonttype": "none",
        "svg.hashsalt": "forerun",
        "figure.facecolor": "white",
    })


def by_users(axes: Any, readings: Readings) -> None:
    """A horizontal axis of users, marked where they begin to queue."""
    slots = readings.raw["settings"]["slots"]
    axes.set_xscale("log", base=2)
    axes.set_xticks(readings.users, [str(users) for users in readings.users])
    axes.minorticks_off()
    if readings.users[-1] > slots:
        axes.axvline(slots, color="#999999", linewidth=1, zorder=0)
        where = axes.get_xaxis_transform()
        axes.text(slots * 1.06, 0.02, f"{slots} slots: others wait", transform=where,
                  fontsize=10, color="#666666")


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    # The same beside the readings, for looking at without a browser.
    figure.savefig(Path.home() / ".cache/forerun/load" / f"{path.stem}.png", dpi=110,
                   bbox_inches="tight")
    plt.close(figure)


def plot_rates(readings: Readings, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6, 4.2))
    for way in readings.ways:
        rates = [readings.rate(way, users) for users in readings.users]
        every = [[readings.rate(way, users, [index]) for index in range(len(readings.blocks[way, users]))]
                 for users in readings.users]
        spread = [[rate - min(of) for rate, of in zip(rates, every, strict=True)],
                  [max(of) - rate for rate, of in zip(rates, every, strict=True)]]
        axes.errorbar(readings.users, rates, yerr=spread, capsize=3, label=WAYS[way], **LOOKS[way])
    by_users(axes, readings)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("users")
    axes.set_ylabel("tokens a second, all users")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    save(figure, path)


def plot_latencies(readings: Readings, path: Path) -> None:
    figure, both = plt.subplots(2, 1, figsize=(6, 7.4), sharex=True)
    panels = [("first", 1.0, "seconds to the first token"), ("token", 1e-3, "ms between tokens")]
    for axes, (measure, unit_s, label) in zip(both, panels, strict=True):
        for way in readings.ways:
            middle, high = (
                [readings.quantile(measure, way, users, share) / unit_s for users in readings.users]
                for share in (0.5, 0.99)
            )
            axes.plot(readings.users, middle, label=WAYS[way], **LOOKS[way])
            faint = LOOKS[way] | {"linewidth": 1, "markersize": 4, "alpha": 0.55}
            axes.plot(readings.users, high, **faint, markerfacecolor="white")
        axes.set_yscale("log")
        axes.set_ylabel(label)
        by_users(axes, readings)
    both[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False,
                   title="thick: median; thin: 99th percentile", title_fontsize=11)
    both[1].set_xlabel("users")
    save(figure, path)


def section(readings: Readings) -> str:
    """What the report says of one pair."""
    raw, pair = readings.raw, readings.raw["pair"]
    files = ", ".join(f"{name} ({digest})" for name, digest in raw["about"]["files"].items())
    count = sum(len(readings.requests(way)) for way in readings.ways)
    client = sum(block["client_cpu"] for block in raw["blocks"])
    busy = sum(block["seconds"] for block in raw["blocks"])
    idle = max(raw["idle"].values(), default=0.0)
    cached = {
        way: np.mean([request.get("cached", 0) for request in readings.requests(way)])
        for way in readings.ways
    }
    said = ", ".join(f"{WAYS[way]} {value:.0f}" for way, value in cached.items())
    quick = " This was a quick run: too little for conclusions." if raw["quick"] else ""
    return f"""## {PAIR_TITLES[pair][0].upper()}{PAIR_TITLES[pair][1:]}

{raw["date"]}, {raw["seconds"] / 60:.0f} minutes, commit {raw["about"]["commit"]}, {count} requests, {readings.failed()} of them failed or cut short.{quick}
Files: {files}. A server nobody asks takes at most {100 * idle:.1f} % of a core; the
load generator took {100 * client / busy:.1f} % of one. Prompt tokens found in a cache, by request: {said}.

### Tokens a second, all users together

![Tokens a second by users](load-{pair}-rates.svg)

{rates(readings)}

### Seconds to the first token: median / 99th percentile

![Time to the first token and between tokens, by users](load-{pair}-latencies.svg)

{latencies(readings, "first", 1.0, 2)}

### Milliseconds between tokens: median / 99th percentile

{latencies(readings, "token", 1e-3, 0)}

### Milliseconds between arrivals: median / 99th percentile

{latencies(readings, "gap", 1e-3, 0)}

### Drafts

{drafts(readings)}
"""


def preface(readings: Readings) -> str:
    """What holds for all pairs."""
    raw = readings.raw
    settings, about = raw["settings"], raw["about"]
    chats = f"{settings['prompts']['chats']} chats of at most {settings['characters']} characters"
    edits = settings["prompts"]["edits"]
    asked = f"{edits} edits of code and {chats} in turns" if edits else chats
    where = about["machine"]
    commands = "\n".join(f"* {WAYS[way]}: {command}" for way, command in raw["commands"].items())
    versions = "; ".join(
        f"{name}: {text} (binary {about['programs'][name]})" for name, text in about["versions"].items()
    )
    return f"""# Load: `forerun serve` beside llama-server

Made by `bench/serve/load.py`. Machine: {where["processor"]}, {where["threads"]} threads, {where["memory"]},
{where["system"]}. {versions}. Python {where["python"]}; users by locust.

## What is measured

Closed-loop users: each sends a request, reads its stream to the end and sends the next. {settings["slots"]} sequences are made
at once, and further users wait for a slot. A level is split into blocks; in each block all ways answer the same prompts,
one way after the other, the first being another each time. All servers stay loaded; those not asked idle.

A request has one of the [prompts](../prompts/README.md), {asked}, with
{settings["output"]} tokens of answer, temperature {settings["temperature"]:g} without any cut (`top_k` 0, `top_p` 1, `min_p` 0), end tokens forbidden so that the
work is the same for all, no seed, streamed. In front of the prompt stands a number that was never used before: no server
gains from having read the same prompt for another way. What the chat template puts in front may be cached.

* **tokens a second**: by `usage` of all streams of a level, over the time from its first request to its last answer.
* **first token**: from sending the request to the first chunk with text, waiting for a slot included.
* **arrival**: chunks within {1e3 * TOGETHER_S:.0f} ms of each other. llama-server sends the tokens of a round in a chunk each,
  Forerun in one; a reader sees them at once either way.
* **between tokens**: the time between two arrivals, divided by the tokens of the second; each token counts once.
* **between arrivals**: the same time undivided: the pauses a reader sees.
* **over**: ratios with 95 % intervals by bootstrap, over blocks for rates, and over blocks and the requests in them for
  medians. With three blocks an interval over blocks is hardly more than their range.
* **llama-server's better way**: the one with more tokens a second at that number of users.
* **drafted per token**, **accepted**: drafted tokens per token of the answers, and the share of them that was accepted.

The ways, with {settings["threads"]} threads and {settings["context"]} tokens of context for each text:

{commands}

Plots: the bars of rates are the lowest and highest block.

## Limits

* One machine with {where["threads"]} threads, on which the load generator runs too; ratios, not rates, are what may carry over.
* Of an edit, only the first {settings["output"]} tokens are written.
* 99th percentiles of the first token rest on few requests: with less than a hundred they are the largest or nearly so.
* Levels are short and begin with all users at once, as after a pause; first tokens at many users show that burst.
* Ways take turns of up to two minutes each, and the machine's speed wanders by a tenth within that. Where next to nothing is
  drafted (the last table), Forerun's two ways do the same, and what differs between them is the machine.
* A request that fails to connect, because the server has closed the connection of the one before, is not sent again.
"""


def write(paths: list[Path], out: Path) -> None:
    """Writes the report and its plots from what was measured."""
    style()
    known = [Readings(json.loads(path.read_text())) for path in paths if path.exists()]
    if not known:
        raise SystemExit("nothing was measured yet")
    for readings in known:
        pair = readings.raw["pair"]
        plot_rates(readings, out / f"load-{pair}-rates.svg")
        plot_latencies(readings, out / f"load-{pair}-latencies.svg")
    text = "\n".join([preface(known[0]), *(section(readings) for readings in known)])
    (out / "load.md").write_text(text, encoding="utf-8")
    print(f"wrote {out / 'load.md'}")
