"""Completes the documentation site while mkdocs builds it (mkdocs.yml names this file as a hook).

What the pages link to outside docs/ becomes part of the site, under `repository/`: Markdown as pages, reports as they are,
sources and folders as pages that show them. So links work in the repository and on the site alike, and a link that leads nowhere
fails the build. Reference pages, decisions and pages that the navigation does not name are added to it.
"""

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS, OUTSIDE = "docs", "repository"
# Files that a browser shows as they are.
STATIC = (".html", ".json", ".png", ".svg")
# Larger files are named in a folder's page and not shown.
SHOWN_BYTES = 100_000

# Links in the text, and those that stand below it under a name.
LINK = re.compile(r"(\]\(|^\[[^\]]+\]: )([^)#\s]+)", re.MULTILINE)
FENCE = re.compile(r"(^ *(`{3,})[^\n]*\n.*?^ *\2`* *$)", re.MULTILINE | re.DOTALL)


def place(path: str) -> str:
    """Where a file or folder of the repository is on the site."""
    if (ROOT / path).is_dir():
        if (ROOT / path / "README.md").exists():
            return place(f"{path}/README.md")
        path = f"{path}/index.md"
    elif path == "README.md":
        path = f"{DOCS}/index.md"
    elif not path.endswith((".md", *STATIC)):
        path = f"{path}.md"
    inside = posixpath.relpath(path, DOCS)
    return f"{OUTSIDE}/{path}" if inside.startswith("..") else inside


def prose(markdown: str, change: Callable[[str], str]) -> str:
    """The text with all but its code blocks changed."""
    parts = FENCE.split(markdown)
    # Each block brings two parts: itself and its fence.
    kept = (change(text) + (parts[3 * i + 1] if 3 * i + 1 < len(parts) else "") for i, text in enumerate(parts[::3]))
    return "".join(kept)


def lists(text: str) -> str:
    """The text with its lists as this Markdown wants them: a blank line before a list, four spaces before a nested one."""
    text = re.sub(r"^((?![*-] |[\s|#>]).+\n)(?=[*-] )", r"\1\n", text, flags=re.MULTILINE)
    return re.sub(r"^ {2,3}(?=[*-] )", "    ", text, flags=re.MULTILINE)


def links(markdown: str, origin: str, change: Callable[[str], str]) -> str:
    """The text of the file `origin`, with what its links to files of the repository lead to changed."""

    def changed(match: re.Match[str]) -> str:
        if ":" in match[2]:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        return match[1] + change(path) if (ROOT / path).exists() else match[0]

    return prose(markdown, lambda text: LINK.sub(changed, text))


def shown(path: str) -> str:
    """A page that shows a source file, or what a folder holds."""
    here = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if here.is_file():
        fence = "`" * 4
        language = here.suffix.removeprefix(".") or "text"
        return f"{head}{fence}{language}\n{here.read_text()}\n{fence}\n"
    entries = [entry for entry in sorted(here.iterdir()) if entry.is_file()]
    lines = (
        f"* [{entry.name}]({entry.name})" if entry.stat().st_size < SHOWN_BYTES else f"* `{entry.name}`"
        for entry in entries
    )
    return head + "\n".join(lines) + "\n"


def title(path: Path) -> str:
    return next(line for line in path.read_text().splitlines() if line.startswith("# ")).removeprefix("# ")


def decisions() -> str:
    """The page of all decisions."""
    adrs = sorted((ROOT / DOCS / "adr").glob("[0-9]*.md"))
    rows = (f"* [{title(path)}]({path.name})" for path in adrs)
    about = "Why things are as they are: one page each, never edited, only superseded."
    return f"# Decisions\n\n{about}\n\n" + "\n".join(rows) + "\n"


# The file of the repository that a page was made from, by its place on the site.
_origins: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    docs = ROOT / DOCS
    for section in config.nav or []:
        for name, entry in section.items():
            if isinstance(entry, str):
                pages = sorted(path.name for path in (docs / entry).glob("*.md") if path.name != "index.md")
                section[name] = [f"{entry}/{page}" for page in ["index.md", *pages]]
    named = re.findall(r"[\w./-]+\.md", str(config.nav))
    more = [page.name for page in sorted(docs.glob("*.md")) if page.name not in named]
    if more:
        config.nav.append({"More": more})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "adr/index.md", content=decisions()))
    _origins.clear()
    waiting = [(file.src_uri, f"{DOCS}/{file.src_uri}") for file in files.documentation_pages()]
    waiting += [(uri, uri.removeprefix(f"{OUTSIDE}/")) for uri in re.findall(rf"{OUTSIDE}/[\w./-]+", str(config.nav))]
    while waiting:
        uri, path = waiting.pop()
        if uri in _origins:
            continue
        _origins[uri] = path
        if files.get_file_from_path(uri) is None:
            add(files, config, uri, path)
        if uri.endswith(".md"):
            found: list[str] = []
            file = files.get_file_from_path(uri)
            links(file.content_string, origin(uri), lambda target: found.append(target) or target)
            waiting += [(place(target), target) for target in found]
    return files


def add(files: Files, config: MkDocsConfig, uri: str, path: str) -> None:
    """Makes a file of the repository part of the site."""
    whole = (ROOT / path).is_file() and path.endswith((".md", *STATIC))
    if whole:
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    else:
        files.append(File.generated(config, uri, content=shown(path)))


def origin(uri: str) -> str:
    """The file that the links of a page are relative to; a folder's page lies in the folder."""
    path = _origins[uri]
    return f"{path}/index.md" if (ROOT / path).is_dir() else path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    uri = page.file.src_uri
    here = posixpath.dirname(uri) or "."
    markdown = links(markdown, origin(uri), lambda target: posixpath.relpath(place(target), here))
    return prose(markdown, lists)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuses pages that would fetch something from elsewhere: the site must work without a network."""
    fetched = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(https?:)?//""")
    for folder, _, names in os.walk(config.site_dir):
        for name in names:
            path = Path(folder) / name
            if path.suffix == ".html" and (found := fetched.search(path.read_text())):
                raise SystemExit(f"{path}: {found[0]}… is fetched from elsewhere")
