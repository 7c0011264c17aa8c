"""Where each key of a TOML document stands: key path → line, so that a semantic error can name the line that is wrong.

Reads only text that tomllib has already accepted; so it looks for the ends of things, never for mistakes in them.
A path is a tuple of keys and list positions, as in ("application", 0, "variant", 1, "alpha_ms").
"""

from __future__ import annotations

import tomllib

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path, int]:
    """The line (from 1) of every table, key and list element. The empty path is line 1."""
    scan = _Scan(text.replace("\r\n", "\n"))
    while scan.skip_blank():
        if scan.here() == "[":
            scan.header()
        else:
            scan.pair(scan.table)
    return scan.lines


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of `path`, or of the nearest thing around it that is there."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


class _Scan:
    """A cursor over the text; `table` is the path of the header last seen."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.table: Path = ()
        self.lines: dict[Path, int] = {(): 1}
        self.lengths: dict[Path, int] = {}  # tables so far in each array of tables

    def here(self) -> str:
        return self.text[self.at : self.at + 1]

    def step(self, count: int = 1) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def skip_blank(self) -> bool:
        """Past white space, line ends and comments; False at the end of the text."""
        while self.at < len(self.text):
            if self.here() == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.here().isspace():
                self.step()
            else:
                return True
        return False

    def header(self) -> None:
        """[a.b] or [[a.b]]; a name that is an array of tables stands for its last table."""
        line = self.line
        is_array = self.text.startswith("[[", self.at)
        self.step(2 if is_array else 1)
        keys = self.keys()
        self.step(2 if is_array else 1)
        path: Path = ()
        for number, key in enumerate(keys):
            path = (*path, key)
            self.lines.setdefault(path, line)
            if is_array and number == len(keys) - 1:
                self.lengths[path] = self.lengths.get(path, 0) + 1
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
                self.lines.setdefault(path, line)
        self.table = path
        self.lines[path] = line

    def keys(self) -> list[str]:
        """A dotted key, up to the sign that ends it."""
        keys: list[str] = []
        while True:
            self.skip_blank()
            start = self.at
            if self.here() in "\"'":
                self.string()
                keys.append(tomllib.loads(f"key = {self.text[start : self.at]}")["key"])
            else:
                while self.here() not in ".=] \t\n":
                    self.step()
                keys.append(self.text[start : self.at])
            self.skip_blank()
            if self.here() != ".":
                return keys
            self.step()

    def pair(self, table: Path) -> None:
        """key = value"""
        line = self.line
        path = table
        for key in self.keys():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.step()
        self.value(path)

    def value(self, path: Path) -> None:
        self.skip_blank()
        match self.here():
            case "[":
                self.step()
                position = 0
                while self.skip_blank() and self.here() != "]":
                    self.lines[(*path, position)] = self.line
                    self.value((*path, position))
                    position += 1
                    self.comma()
                self.step()
            case "{":
                self.step()
                while self.skip_blank() and self.here() != "}":
                    self.pair(path)
                    self.comma()
                self.step()
            case '"' | "'":
                self.string()
            case _:
                while self.here() not in ("", ",", "]", "}", "\n", "#"):
                    self.step()

    def comma(self) -> None:
        self.skip_blank()
        if self.here() == ",":
            self.step()

    def string(self) -> None:
        """Any of the four kinds of string; a backslash hides a quote only between double quotes."""
        mark = self.here()
        quote = mark * 3 if self.text.startswith(mark * 3, self.at) else mark
        self.step(len(quote))
        while not self.text.startswith(quote, self.at):
            self.step(2 if mark == '"' and self.here() == "\\" else 1)
        self.step(len(quote))
        # """ends with a quote"""" : up to two quotes belong to the text before the closing three.
        while len(quote) == 3 and self.here() == mark:
            self.step()
