"""Reads a TOML or JSON document field by field, with bounds. Refuses with `FILE:LINE: what is wrong and what to do`.

A `Fields` remembers which keys were asked for; `done()` refuses the rest, so a misspelt key is never silently ignored.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from stretto.config.json_lines import json_key_lines
from stretto.config.toml_lines import Path, key_lines, line_of
from stretto.core.errors import StrettoError

MAX_FILE_BYTES = 4_000_000

Default = TypeVar("Default")


class ConfigError(StrettoError):
    """A file that cannot be used; says the file, the line where there is one, what is wrong and what to do."""

    def __init__(self, label: str, message: str, line: int | None = None) -> None:
        super().__init__(f"{label}: {message}" if line is None else f"{label}:{line}: {message}")
        self.label = label
        self.message = message
        self.line = line


@dataclass(frozen=True)
class Document:
    """A parsed file and its text; lines are looked up only once something is wrong."""

    label: str
    text: str
    folder: FilePath
    find_lines: Callable[[str], dict[Path, int]] = key_lines

    def fail(self, path: Path, message: str) -> NoReturn:
        raise ConfigError(self.label, message, line_of(self.find_lines(self.text), path))


def read_fields(file: FilePath) -> Fields:
    """The top level of a TOML file."""
    try:
        if file.exists() and not file.is_file():
            raise ConfigError(str(file), "cannot be read (not a plain file)")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(str(file), f"larger than {MAX_FILE_BYTES} bytes; it should be a short file")
        text = file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(str(file), "there is no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read ({error.strerror or 'input error'})") from None
    return parse_fields(text, str(file), file.parent)


def parse_fields(text: str, label: str = "scenario", folder: FilePath | None = None) -> Fields:
    """The top level of TOML text."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, reason = _syntax_error(error, text)
        raise ConfigError(label, f"not valid TOML: {reason}", line) from None
    except ValueError:
        raise ConfigError(label, "holds a number with too many digits", 1) from None
    except RecursionError:
        raise ConfigError(label, "lists or tables are nested too deeply", 1) from None
    return Fields(Document(label, text, folder or FilePath(".")), (), table)


def parse_json_fields(text: str, label: str, folder: FilePath | None = None) -> Fields:
    """The top level of JSON text, which must be an object."""
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise ConfigError(label, f"not valid JSON: {reason}", error.lineno) from None
    except ValueError:
        raise ConfigError(label, "holds a number with too many digits", 1) from None
    except RecursionError:
        raise ConfigError(label, "lists or objects are nested too deeply", 1) from None
    if not isinstance(table, dict):
        raise ConfigError(label, "must hold one JSON object, in braces", 1)
    return Fields(Document(label, text, folder or FilePath("."), json_key_lines), (), table)


def _syntax_error(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """tomllib says "Invalid value (at line 3, column 7)", or "(at end of document)"."""
    reason, _, place = str(error).rpartition(" (at ")
    words = place.replace(",", " ").rstrip(")").split()
    line = int(words[1]) if words[:1] == ["line"] else len(text.rstrip().splitlines()) or 1
    reason = (reason or str(error)).rstrip(".")
    return line, reason[:1].lower() + reason[1:]


@dataclass
class Fields:
    """One table of the document. Asking for a key with no default makes it required."""

    document: Document
    path: Path
    table: dict[str, Any]
    asked: set[str] = field(default_factory=set)

    def fail(self, message: str, key: str | None = None, position: int | None = None) -> NoReturn:
        path = self.path if key is None else (*self.path, key)
        self.document.fail(path if position is None else (*path, position), message)

    def has(self, key: str) -> bool:
        self.asked.add(key)
        return key in self.table

    def at(self, key: str | None = None) -> AbstractContextManager[None]:
        """What core refuses inside gets the line of `key` (or of this table) in front."""
        return _Located(self, key)

    def number(self, key: str, low: float, high: float, default: float | None = None, *, above: bool = False) -> float:
        """A number in [low, high], or (low, high] where `above`."""
        if not self.has(key):
            return self._default(key, default)
        return self._number(self.table[key], low, high, above, key)

    def optional_number(self, key: str, low: float, high: float, *, above: bool = False) -> float | None:
        return self.number(key, low, high, above=above) if self.has(key) else None

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        if not self.has(key):
            return self._default(key, default)
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(f"{key} is {shown(value)}; give a whole number from {low} to {high}", key)
        if not low <= value <= high:
            self.fail(f"{key} is {value}; it must be from {low} to {high}", key)
        return value

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return self.integer(key, low, high) if self.has(key) else None

    def flag(self, key: str, default: bool) -> bool:
        if not self.has(key):
            return default
        if not isinstance(self.table[key], bool):
            self.fail(f"{key} is {shown(self.table[key])}; give true or false", key)
        return bool(self.table[key])

    def text(self, key: str, default: str | None = None) -> str:
        if not self.has(key):
            return self._default(key, default)
        value = self.table[key]
        if not isinstance(value, str) or not value:
            self.fail(f"{key} is {shown(value)}; give a text in quotes", key)
        return value

    def choice(self, key: str, options: Sequence[str], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in options:
            self.fail(f"{key} is {shown(value)}; {suggestion(value, options)}", key)
        return value

    def numbers(self, key: str, low: float, high: float) -> tuple[float, ...]:
        """A list of numbers, one at least."""
        if not self.has(key):
            self._missing(key)
        values = self.table[key]
        if not isinstance(values, list) or not values:
            self.fail(f"{key} is {shown(values)}; give a list of numbers", key)
        return tuple(self._number(value, low, high, False, key, position) for position, value in enumerate(values))

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, possibly empty."""
        values = self.table[key] if self.has(key) else []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.fail(f"{key} is {shown(values)}; give a list of texts in quotes", key)
        return tuple(values)

    def matrix(self, key: str, low: float, high: float) -> tuple[tuple[float, ...], ...]:
        """A list of rows of numbers, all of one length."""
        if not self.has(key):
            self._missing(key)
        rows = self.table[key]
        if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
            self.fail(f"{key} is {shown(rows)}; give a list of rows, each a list of numbers", key)
        if len({len(row) for row in rows}) != 1:
            self.fail(f"the rows of {key} differ in length", key)
        return tuple(
            tuple(self._number(value, low, high, False, key, position) for value in row)
            for position, row in enumerate(rows)
        )

    def part(self, key: str) -> Fields | None:
        """The sub-table `key`, where there is one."""
        if not self.has(key):
            return None
        value = self.table[key]
        if not isinstance(value, dict):
            self.fail(f"{key} is {shown(value)}; it must be a table, as in [{self._dotted(key)}]", key)
        return Fields(self.document, (*self.path, key), value)

    def parts(self, key: str) -> list[Fields]:
        """The tables of the array of tables `key`."""
        if not self.has(key):
            return []
        value = self.table[key]
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(f"{key} must be a list of tables, as in [[{self._dotted(key)}]]", key)
        return [Fields(self.document, (*self.path, key, number), item) for number, item in enumerate(value)]

    def done(self, also: Sequence[str] = ()) -> None:
        """Refuses the first key that nobody asked for; `also` are keys that belong only beside some other choice."""
        for key in self.table:
            if key not in self.asked:
                where = f"[{self._dotted()}]" if self.path else "the top level"
                if key in also:
                    self.fail(f"{key} does not go with the other choices made in {where}; leave it out", key)
                self.fail(f"unknown key {shown(key)} in {where}; {suggestion(key, sorted(self.asked))}", key)

    def _default(self, key: str, default: Default | None) -> Default:
        return self._missing(key) if default is None else default

    def _missing(self, key: str) -> NoReturn:
        where = f"[{self._dotted()}]" if self.path else "the top level"
        self.fail(f"{where} needs {key}")

    def _number(self, value: Any, low: float, high: float, above: bool, key: str, position: int | None = None) -> float:
        bounds = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{key} is {shown(value)}; give a number {bounds}", key, position)
        if not low <= value <= high or (above and value == low):  # not a number is in no range
            self.fail(f"{key} is {shown(value)}; it must be {bounds}", key, position)
        return float(value)

    def _dotted(self, *rest: str) -> str:
        return ".".join(str(key) for key in (*self.path, *rest) if not isinstance(key, int))


@dataclass
class _Located(AbstractContextManager[None]):
    fields: Fields
    key: str | None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, StrettoError) and not isinstance(error, ConfigError):
            self.fields.fail(str(error), self.key)


def shown(value: object) -> str:
    """A value as it would stand in the file, cut short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def suggestion(given: str, options: Sequence[str]) -> str:
    """What may stand there instead, the likeliest first."""
    close = difflib.get_close_matches(given, options, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"there {'is' if len(options) == 1 else 'are'} {', '.join(options)}" if options else "no key belongs here"
