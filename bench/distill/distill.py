#!/usr/bin/env python3
"""Train draft models and measure what they gain: writes a report of this folder for each run.

    distill.py RUN FOLDER      RUN is one of those below; FOLDER has the files that bench/prompts/choose.py is given

pruned    ten of SmolLM2's thirty blocks, for SmolLM2 widened to ten times its size
code      SmolLM2 with Qwen2.5-Coder's vocabulary, for that model, on code
domain    the first again, on two hundred questions of one kind that a server recorded
losses    the four divergences, on the target's sequences and on the student's own, three seeds each

Prompts of the published sets that bench/prompts has are not learned from: the benchmarks are made of them. What is trained is kept in the
cache, so that a run that was stopped goes on.
"""

import argparse
import importlib.util
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "serve"))

import server  # noqa: E402

PROMPTS = HERE.parent / "prompts"
FORERUN = Path(os.environ.get("FORERUN_BIN", "~/.cache/forerun/target/release/forerun")).expanduser().absolute()
MODELS = Path(os.environ.get("FORERUN_MODELS", "~/.cache/forerun/models")).expanduser()
MADE = MODELS.parent / "distill"

SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q8_0.gguf"
WIDENED = MODELS / "SmolLM2-widened-x16.Q8_0.gguf"
QWEN = MODELS / "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf"
BLOCKS = "0-3,7,12,17,27-29"
LOSSES = ("kl", "reverse-kl", "jsd", "tv")
SEEDS = (1, 2, 3)
RESAMPLES = 2000
HELD_OUT = re.compile(r"step (\d+) of .* (\d+) rows: held out: loss ([\d.]+), overlap ([\d.]+), the same token likeliest ([\d.]+)")


class Point(NamedTuple):
    """What was measured of the prompts that are held out."""

    step: int
    rows: int
    loss: float
    overlap: float
    agreement: float


class Trained(NamedTuple):
    """A draft model, what was said of it, and the command."""

    path: Path
    curve: list[Point]
    said: str
    command: str

    @property
    def best(self) -> Point:
        return max(self.curve, key=lambda point: point.overlap)

    def line(self, beginning: str) -> str:
        """The last thing it said that begins so."""
        return next(line for line in reversed(self.said.splitlines()) if line.startswith(beginning))


def training_prompts(folder: Path, tasks: set[str], most: int) -> list[dict[str, str]]:
    """Prompts of the published sets, at most so many of a task, without those that benchmarks are made of."""
    spec = importlib.util.spec_from_file_location("choose", PROMPTS / "choose.py")
    assert spec and spec.loader
    choose = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(choose)
    sets = choose.spec_bench(folder / "spec_bench.jsonl")
    sets["human_eval"] = choose.human_eval(folder / "human_eval.jsonl.gz")
    sets["gsm8k"] = choose.gsm8k(folder / "gsm8k_test.jsonl")
    known = {json.loads(line)["id"] for name in ("spec_bench", "human_eval", "gsm8k") for line in (PROMPTS / f"{name}.jsonl").open()}
    new = {task: [prompt for prompt in prompts if prompt.id not in known] for task, prompts in sets.items() if task in tasks}
    return [prompt._asdict() for prompts in new.values() for prompt in prompts[:most]]


def write_prompts(name: str, prompts: list[dict[str, str]]) -> Path:
    path = MADE / f"{name}.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def distill(name: str, *flags: str | Path) -> Trained:
    """Trains a draft model, unless it is there already, and goes on from a checkpoint if there is one."""
    path, log = MADE / f"{name}.gguf", MADE / f"{name}.log"
    command = [FORERUN, "distill", *flags, "-o", path]
    if not path.exists():
        more = ["--resume"] if path.with_name(path.name + ".checkpoint").exists() else []
        print("$", *command, *more, file=sys.stderr, flush=True)
        with log.open("a" if more else "w") as said:
            started = time.monotonic()
            program = subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True)
            assert program.stderr
            for line in program.stderr:
                sys.stderr.write(line)
                said.write(line)
            if program.wait():
                sys.exit(f"exit status {program.returncode}")
            said.write(f"took {(time.monotonic() - started) / 60:.3g} minutes\n")
    said = log.read_text()
    curve = [Point(int(step), int(rows), *map(float, others)) for step, rows, *others in HELD_OUT.findall(said)]
    return Trained(path, curve, said, without_folders(" ".join(map(str, command))))


def without_folders(text: str) -> str:
    """What a report says of commands and files, without this machine's folders."""
    return text.replace(str(MODELS), "models").replace(str(MADE), "distill").replace(str(FORERUN), "forerun")


def bench(name: str, target: Path, drafts: list[Path], *flags: str) -> dict:
    """Speed with each draft model, taking turns with plain decoding."""
    out = MADE / f"{name}.html"
    models = itertools.chain.from_iterable(("--draft", path) for path in drafts)
    command = [FORERUN, "bench", "-m", target, *models, *flags, "--out", out, "--force"]
    print("$", *command, file=sys.stderr, flush=True)
    subprocess.run(command, check=True)
    return json.loads(out.with_suffix(".json").read_text())


def checked(name: str, target: Path, draft: Path, prompts: Path, limit: str = "5m") -> str:
    """Whether a draft model pays, by `forerun tune`, and whether it changes anything, by `forerun certify` within a limit of time."""
    tune = [FORERUN, "tune", "-m", target, "--draft", draft, "--prompts", prompts, "--time-limit", "4m"]
    print("$", *tune, file=sys.stderr, flush=True)
    advice = subprocess.run(tune, stdout=subprocess.PIPE, check=True, text=True).stdout
    page = MADE / f"{name}-certificate.html"
    certify = [FORERUN, "certify", "-m", target, "-md", draft, "--prompts", prompts, "--power", "0.05", "--time-limit", limit, "--out", page]
    print("$", *certify, file=sys.stderr, flush=True)
    # A certificate that did not pass is reported, too.
    subprocess.run(certify, check=False)
    certificate = json.loads(page.with_suffix(".json").read_text())
    found = certificate["decoder"]
    share = found["smallest_share"]
    # Of drafts that are translated, the drafter's probabilities are not known: outputs are compared with plain ones instead.
    pairs = f"; {found['pairs']:,} outputs beside as many plain ones, which would have told {found['smallest_difference'] or 1:.1%} of outputs apart"
    finds = pairs if share is None else f", which would have found {share:.1%} of wrong ones"
    tested = f"{found['tokens']:,} tokens with {found['accepted']:,} of {found['drafted']:,} drafted ones accepted{finds}"
    return f"""`forerun tune`, on prompts of {prompts.stem}, says of it:

```text
{without_folders(advice).strip()}
```

`forerun certify --power 0.05`, on the same prompts: **[{certificate["verdict"]}]({name}-certificate.html)**, by {tested}."""


def interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} ({low:.3f}–{high:.3f})"


def ratio(report: dict, settings: tuple[int, int], count: Callable[[dict], float], per: Callable[[dict], float]) -> str:
    """How one setting's share compares with another's, over the same prompts, with a 95 % interval by resampling them."""
    measures: dict[tuple[int, int], dict[int, dict]] = {}
    for measure in report["measures"]:
        measures.setdefault((measure["repeat"], measure["prompt"]), {})[measure["setting"]] = measure
    pairs = [tuple(both[setting] for setting in settings) for both in measures.values() if all(setting in both for setting in settings)]

    def of(pairs: list[tuple[dict, ...]]) -> float:
        one, other = (sum(count(pair[at]) for pair in pairs) / sum(per(pair[at]) for pair in pairs) for at in (0, 1))
        return other / one

    chance = random.Random(1)
    found = sorted(of(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return interval(of(pairs), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)])


def first(measure: dict, what: str) -> float:
    """Of the first token of each draft."""
    return measure["positions"][0][what] if measure["positions"] else 0


def speed_table(report: dict) -> str:
    """What each setting came to over all tasks."""
    rows = ["| setting | temperature | tokens a second | over plain decoding | tokens per pass | first tokens accepted |", "|---|--:|--:|--:|--:|--:|"]
    for cell in report["cells"]:
        if cell["task"] is None:
            speedup = interval(**cell["speedup"]) if cell["speedup"] else "1"
            accepted = f"{cell['positions'][0]['acceptance']:.3f}" if cell["positions"] else "–"
            rows.append(
                f"| {cell['setting']} | {cell['temperature']:g} | {cell['tokens_per_second']:.2f} | {speedup} | {cell['block_efficiency']:.2f} | {accepted} |"
            )
    return "\n".join(rows)


def publish(run: str, title: str, trained: Trained, text: str) -> None:
    """The report, the page with curves, that of the benchmark and the certificate."""
    pages = {f"{trained.path.name}.html": f"{run}.html"} | {name: name for name in (f"{run}-bench.html", f"{run}-certificate.html")}
    for made, published in pages.items():
        shutil.copy(MADE / made, HERE / published)
    verdict = "\n".join(f"* {line}" for line in trained.said.splitlines() if line.startswith(("Overlap of what", "The same token likeliest:")))
    took = trained.line("took")
    report = f"""# {title}

Made by `just distill-report {run} FOLDER`; the training {took}, with the target's sequences if there were none yet:

```sh
{trained.command}
```

On prompts that were held out ([curves and all figures]({run}.html); [all of the benchmark]({run}-bench.html)):

{verdict}

{text}
"""
    (HERE / f"{run}.md").write_text(report)
    print(report)


GENERAL = {"mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "human_eval", "gsm8k"}


def pruned_model(folder: Path) -> Trained:
    prompts = write_prompts("general", training_prompts(folder, GENERAL, 160))
    flags = ("--keep-blocks", BLOCKS, "--learn-prompts", "-c", "896", "--listed", "256", "--rate", "0.002", "--epochs", "12", "--time-limit", "40m")
    return distill("pruned", "-m", SMOLLM2, "--prompts", prompts, *flags)


def pruned(folder: Path) -> None:
    untrained = distill("untrained", "-m", SMOLLM2, "--keep-blocks", BLOCKS, "--no-training")
    trained = pruned_model(folder)
    found = bench("pruned-bench", WIDENED, [untrained.path, trained.path], "--temp", "1", "--spec-draft-n-max", "1,2,4", "--time-limit", "8m")
    publish(
        "pruned",
        "Ten of SmolLM2's thirty blocks, trained",
        trained,
        f"The target is SmolLM2 widened to ten times its size, which says what SmolLM2 says; its prompts are those of `forerun bench`.\n\n{speed_table(found)}\n\n"
        + checked("pruned", WIDENED, trained.path, PROMPTS / "spec_bench.jsonl"),
    )


def code(folder: Path) -> None:
    prompts = write_prompts("code", training_prompts(folder, {"human_eval"}, 1000))
    data = ("--student", SMOLLM2, "--transplant", "16384", "-n", "128", "--held-out", "24", "--learn-prompts")
    flags = (*data, "--epochs", "20", "--batch-tokens", "1024", "--measure-every", "20", "--time-limit", "25m")
    trained = distill("code", "-m", QWEN, "--prompts", prompts, *flags)
    drafts = [SMOLLM2, trained.path]
    found = bench("code-bench", QWEN, drafts, "--tasks", "human_eval", "--temp", "1", "--spec-draft-n-max", "1,3", "--time-limit", "10m")
    # Plain decoding, SmolLM2 with drafts of one, with drafts of three, and the same of the trained one.
    gain = ratio(found, (1, 3), lambda it: first(it, "accepted"), lambda it: first(it, "drafted"))
    text = f"First tokens accepted, over SmolLM2 through the map between vocabularies, drafts of one: {gain}.\n\n{speed_table(found)}\n\n"
    # Outputs compared with plain ones take longer than the drafter's probabilities would.
    text += checked("code", QWEN, trained.path, PROMPTS / "human_eval.jsonl", "12m")
    publish("code", "SmolLM2 with Qwen2.5-Coder's vocabulary, trained on code", trained, text)


def recorded(name: str, questions: list[dict[str, str]]) -> Path:
    """The questions as a server records them that is asked them, unless it has been."""
    path = MADE / f"{name}.jsonl"
    if path.exists() and len(path.read_text().splitlines()) == len(questions):
        return path
    path.unlink(missing_ok=True)
    asked_of = server.Server("forerun serve", server.forerun(str(SMOLLM2), "--record-prompts", str(path)), MADE / f"{name}-server.log")
    print("$", *asked_of.command, file=sys.stderr, flush=True)
    with server.serving([asked_of]):
        for question in questions:
            body = {"messages": [{"role": "user", "content": question["prompt"]}], "max_tokens": 1}
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{asked_of.url}/v1/chat/completions", json.dumps(body).encode(), headers)
            urllib.request.urlopen(request, timeout=60).close()
    return path


def domain(folder: Path) -> None:
    general = pruned_model(folder)
    prompts = recorded("domain", training_prompts(folder, {"gsm8k"}, 1000)[-232:])
    flags = ("--student", general.path, "--prompts", prompts, "--samples", "2", "--epochs", "8", "--time-limit", "15m")
    trained = distill("domain", "-m", SMOLLM2, *flags)
    drafts = [general.path, trained.path]
    found = bench("domain-bench", SMOLLM2, drafts, "--tasks", "gsm8k", "--prompts-per-task", "12", "--temp", "1", "--spec-draft-n-max", "4", "--time-limit", "6m")
    gain = ratio(found, (1, 2), lambda it: it["accepted"], lambda it: it["rounds"])
    text = f"Accepted tokens per pass, over the general draft model: {gain}.\n\n{speed_table(found)}\n\n"
    text += checked("domain", SMOLLM2, trained.path, PROMPTS / "gsm8k.jsonl")
    publish("domain", "A draft model trained further on questions of one kind", trained, text)


def of_seeds(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def losses(folder: Path) -> None:
    prompts = write_prompts("losses", training_prompts(folder, GENERAL, 16))
    data = ("-m", SMOLLM2, "--keep-blocks", BLOCKS, "--prompts", prompts, "-n", "64", "-c", "320", "--held-out", "24", "--learn-prompts")
    steps = ("--epochs", "3", "--batch-tokens", "768", "--measure-every", "20")
    of_seed = {seed: (*data, "-s", str(seed), "--rows", MADE / f"losses-{seed}.rows") for seed in SEEDS}
    for seed, flags in of_seed.items():
        # The target's sequences are made here, so that no training's time has them in it.
        distill(f"losses-data-{seed}", *flags, "--time-limit", "10s")
    rows = ["| loss | sequences | overlap | the same token likeliest | rows learned | minutes |", "|---|---|--:|--:|--:|--:|"]
    for loss, own in itertools.product(LOSSES, ("0", "0.5")):
        found = [distill(f"losses-{loss}-{own}-{seed}", *flags, *steps, "--loss", loss, "--on-policy", own) for seed, flags in of_seed.items()]
        best = [trained.best for trained in found]
        shares = [of_seeds([point.overlap for point in best]), of_seeds([point.agreement for point in best])]
        learned = statistics.fmean(trained.curve[-1].rows for trained in found)
        minutes = statistics.fmean(float(trained.line("took").split()[1]) for trained in found)
        rows.append(f"| `{loss}` | {'half the student’s own' if own != '0' else 'the target’s'} | " + " | ".join([*shares, f"{learned:,.0f}", f"{minutes:.1f}"]) + " |")
    text = "# Losses and whose sequences, at one budget\n\nMade by `just distill-report losses FOLDER`: ten of SmolLM2's thirty blocks, three epochs.\n"
    text += "Means over three seeds, each of sequences and order, and in brackets what each came to, in one order throughout. Batches have the same size throughout; the\n"
    text += "student's own sequences have no rows at the tokens of the prompt. Minutes are those of two cores.\n\n" + "\n".join(rows) + "\n"
    (HERE / "losses.md").write_text(text)
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = {"pruned": pruned, "code": code, "domain": domain, "losses": losses}
    parser.add_argument("run", choices=runs)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    MADE.mkdir(parents=True, exist_ok=True)
    runs[given.run](given.folder)


if __name__ == "__main__":
    main()
