"""The code blocks of README.md and docs/*.md, fenced or indented, and what each is written in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r" *```(\w*)$")
COMMAND = re.compile(r"(\$ )?(stretto|make|pip|ray|docker|kubectl) ")
TABLE = re.compile(r"\[\[?[\w.]+\]\]?$")


@dataclass(frozen=True)
class Block:
    document: str
    line: int
    language: str  # python, toml, json, shell, or text
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """Its document and its first line, by which it is found again when others have come before it."""
        return self.document, self.text.partition("\n")[0].strip()

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"

    def commands(self) -> list[str]:
        """Of a shell block: whole lines, without prompts, remarks and what follows on them."""
        whole = self.text.replace("\\\n", " ")
        lines = [line.strip().removeprefix("$ ") for line in whole.splitlines() if COMMAND.match(line.strip())]
        return [re.split(r" {2,}|\s#|\s&$", line)[0] for line in lines]


def blocks() -> list[Block]:
    return [block for file in DOCUMENTS for block in _of(file)]


def _of(file: Path) -> list[Block]:
    document, lines = str(file.relative_to(ROOT)), file.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        end = number + 1
        if opening:
            while not FENCE.match(lines[end]):
                end += 1
            found.append(_block(document, number + 2, lines[number + 1 : end], opening[1]))
            end += 1
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found += _parts(document, number + 1, lines[number:end])
        number = end
    return found


def _parts(document: str, line: int, lines: list[str]) -> list[Block]:
    """A file and the command that takes it stand below each other, which is two blocks."""
    for place in range(1, len(lines)):
        if not lines[place - 1].strip() and COMMAND.match(lines[place].strip()):
            return [
                *_parts(document, line, lines[: place - 1]),
                *_parts(document, line + place, lines[place:]),
            ]
    return [_block(document, line, lines, "")]


def _block(document: str, line: int, lines: list[str], language: str) -> Block:
    text = dedent("\n".join(lines)).strip("\n")
    return Block(document, line, language or _guessed(text), text + "\n")


def _guessed(text: str) -> str:
    first = text.partition("\n")[0]
    if COMMAND.match(first):
        return "shell"
    if TABLE.match(first):
        return "toml"
    return "json" if first[:1] in ("{", '"') else "text"
