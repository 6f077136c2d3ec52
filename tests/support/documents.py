"""The documents, and what stands in them: links, Python, and commands."""

import re
from pathlib import Path

from tests.support.runs import ROOT

DOCKERFILES = sorted((ROOT / "docs" / "docker").iterdir())
PAGES = ROOT / "docs" / "pages"
HOW_TO = sorted(path for path in PAGES.glob("*.md"))
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "saved_models" / "README.md",
    *sorted(PAGES.rglob("*.md")),
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A text wherever its lines end."""
    return read(path).replace("\n", " ")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", read(path), re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[tuple[str, str]]:
    """Every `python -m pipelines.X flags`: X, and the flags up to a redirection or the end."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"python -m pipelines\.([\w.]+)([^\n`<|&#'()]*)", joined)


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, and what follows each."""
    lines = re.sub(r"^#.*\n", "", read(path), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in lines.splitlines() if line]


def copied_by(path: Path) -> list[str]:
    """What of the repository a Dockerfile copies."""
    copies = [rest.split() for word, rest in instructions(path) if word == "COPY"]
    return [source for *sources, _ in copies for source in sources]


def anchors(path: Path) -> set[str]:
    """Anchors of the headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", read(path), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
