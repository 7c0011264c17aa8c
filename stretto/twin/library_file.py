"""A library of verdicts in a file: JSON that a person can read. The same library, the same bytes.

Whatever is no such file is refused with a sentence. A candidate is a name and options; only planners that the judge
itself would try are taken, with options within their bounds, so that a file can never name code to run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stretto.core.application import check_name
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.core.verdict import Candidate, OptionValue, Promise, Verdict
from stretto.planners.entry import Option
from stretto.planners.registry import ENTRIES
from stretto.twin.library import ANEW, MOST_VERDICTS, ApplicationMark, Judgement, Library, Scope, VariantMark

FORMAT = "stretto judged plans"
VERSION = 1
MAX_BYTES = 4_000_000
MOST_NAMES = 1_000  # of applications, of variants, of figures
MOST_WORKERS = 65_536
LARGEST = 1e12
LONGEST_TEXT = 500
FIGURES = 6  # significant
NOTHING = 1e-12  # rounding errors

Table = dict[str, Any]


def save_library(path: Path, library: Library) -> None:
    """Whole or not at all: what was there before stays until the new file is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(as_text(library), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StrettoError(f"{path.name}: cannot be written ({error.strerror or 'output error'})") from None


def load_library(path: Path) -> Library:
    """What `save_library` wrote; anything else is refused."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise StrettoError(f"{path.name}: cannot be read ({error.strerror or 'input error'})") from None
    return library_of(content, path.name)


def library_of(content: bytes | str, name: str) -> Library:
    """From the content of a file; `name` is what people call it."""
    if len(content) > MAX_BYTES:
        raise StrettoError(f"{name}: too large for a file of judged plans; {ANEW}")
    try:
        head = json.loads(content)
        if head["format"] != FORMAT:
            raise ValueError(FORMAT)
        if head["version"] != VERSION:
            raise StrettoError(f"{name}: judged by another version of Stretto; {ANEW}")
        return _library(head, name)
    except StrettoError as error:
        raise error if str(error).startswith(f"{name}: ") else StrettoError(f"{name}: {error}; {ANEW}") from None
    except Exception:  # json and the readers below raise half a dozen kinds on what is cut short or made up
        raise StrettoError(f"{name}: not a file of judged plans, or damaged; {ANEW}") from None


def as_text(library: Library) -> str:
    """In the order in which a person reads it, one application and one verdict a line."""
    lines = []
    for key, value in as_plain(library).items():
        text = _line(value)
        if isinstance(value, list):
            text = "[\n" + ",\n".join(f"  {_line(item)}" for item in value) + "\n ]"
        lines.append(f" {_line(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def as_plain(library: Library) -> Table:
    """All of it, with as many figures as mean something."""
    scope = library.scope
    names = [application.name for application in scope.applications]
    return {
        "format": FORMAT,
        "version": VERSION,
        "conditions": library.conditions,
        "quantile": scope.quantile,
        "workers": dict(scope.workers),
        "memory_bytes": dict(scope.memory_bytes),
        "applications": [
            {
                "name": application.name,
                "slo_ms": application.slo_ms,
                "variants": {
                    variant.name: {"accuracy": variant.accuracy, "latencies": dict(variant.latencies)}
                    for variant in application.variants
                },
            }
            for application in scope.applications
        ],
        "judged": [_judgement_as_plain(judgement, names) for judgement in library.judgements],
    }


def _judgement_as_plain(judgement: Judgement, names: list[str]) -> Table:
    verdict, promise = judgement.verdict, judgement.verdict.promise
    return {
        "rates": {name: _rounded(rate) for name, rate in zip(names, verdict.rates, strict=True)},
        "candidate": _candidate_as_plain(verdict.candidate),
        "promise": {name: _rounded(value) for name, value in vars(promise).items()},
        "runner_up": _candidate_as_plain(verdict.runner_up),
        "ahead": _rounded(verdict.ahead),
        "ahead_error": _rounded(verdict.ahead_error),
        "tried": verdict.tried,
        "stressed": _rounded(verdict.stressed),
        "figures": {name: _rounded(value) for name, value in judgement.figures.items()},
        "levels": [_rounded(level) for level in verdict.levels],
        "lump": _rounded(verdict.lump),
        "ratios": [[_rounded(ratio) for ratio in row] for row in verdict.ratios],
    }


def _candidate_as_plain(candidate: Candidate) -> Table:
    plain = {"planner": candidate.planner, "options": dict(candidate.options), "variants": dict(candidate.variants)}
    return plain if candidate.tail == 1 else plain | {"tail": candidate.tail}


def _rounded(value: float) -> float:
    return float(f"{value:.{FIGURES}g}") if abs(value) > NOTHING else 0.0


def _library(head: Table, name: str) -> Library:
    applications = tuple(_application(stated) for stated in _list(head["applications"], MOST_NAMES))
    workers = {_name(kind): _whole(count, 1, MOST_WORKERS) for kind, count in _table(head["workers"]).items()}
    memory_bytes = {_name(kind): _whole(value, 1, 2**62) for kind, value in _table(head["memory_bytes"]).items()}
    if not applications or not workers or not memory_bytes.keys() <= workers.keys():
        raise ValueError("nothing that these are for")
    scope = Scope(applications, workers, Quantile[head["quantile"].upper()].name.lower(), memory_bytes)
    if len({application.name for application in applications}) != len(applications):
        raise ValueError("an application twice")
    judgements = tuple(_judgement(stated, scope) for stated in _list(head["judged"], MOST_VERDICTS))
    return Library(scope, judgements, _text(head["conditions"]), name)


def _application(stated: Table) -> ApplicationMark:
    variants = tuple(
        VariantMark(
            _name(name),
            _number(variant["accuracy"], 0, 1),
            {_name(kind): _text(digest) for kind, digest in _table(variant["latencies"]).items()},
        )
        for name, variant in _table(stated["variants"]).items()
    )
    return ApplicationMark(_name(stated["name"]), _number(stated["slo_ms"], 0, LARGEST), variants)


def _judgement(stated: Table, scope: Scope) -> Judgement:
    rates = _table(stated["rates"])
    if rates.keys() != {application.name for application in scope.applications}:
        raise ValueError("rates of other applications")
    promise = _table(stated["promise"])
    verdict = Verdict(
        tuple(_number(rates[application.name], 0, LARGEST) for application in scope.applications),
        _candidate(stated["candidate"], scope),
        Promise(**{name: _number(promise[name], 0, 1) for name in ("correct", "late", "correct_error", "late_error")}),
        _candidate(stated["runner_up"], scope),
        _number(stated["ahead"], -10, 10),
        _number(stated["ahead_error"], 0, 10),
        _whole(stated["tried"], 0, 10**6),
        stressed=_number(stated.get("stressed", 0.0), -10, 10),  # judged without, in earlier files
        levels=_levels(_list(stated.get("levels", [1.0, 1.0]), 2)),
        lump=_number(stated.get("lump", 1.0), 1, LARGEST),
        ratios=tuple(
            tuple(_number(ratio, 1e-3, 1e3) for ratio in _list(row, MOST_NAMES))
            for row in _list(stated.get("ratios", []), MOST_NAMES)
        ),
    )
    figures = {_text(name): _number(value, 1e-12, LARGEST) for name, value in _table(stated["figures"]).items()}
    return Judgement(verdict, figures)


def _levels(stated: list[Any]) -> tuple[float, float]:
    lowest, highest = (_number(level, 0, 1e9) for level in stated)
    return (lowest, highest)


def _candidate(stated: Table, scope: Scope) -> Candidate:
    planner = _text(stated["planner"])
    entry = next((entry for entry in ENTRIES if entry.name == planner and entry.tried), None)
    if entry is None:
        raise StrettoError(f"planner {planner[:40]!r} is none that is judged here")
    known = {option.name: option for option in entry.options}
    options = _table(stated["options"])
    if not options.keys() <= known.keys():
        raise StrettoError(f"planner {planner} has other options here")
    variants = _table(stated["variants"])
    names = {mark.name: [variant.name for variant in mark.variants] for mark in scope.applications}
    if any(variant not in names.get(application, ()) for application, variant in variants.items()):
        raise ValueError("a variant that there is not")
    values = tuple((name, _option(value, known[name])) for name, value in options.items())
    return Candidate(planner, values, tuple(variants.items()), _number(stated.get("tail", 1.0), 0, 1))


def _option(value: Any, option: Option) -> OptionValue:
    if option.kind == "flag":
        if type(value) is not bool:
            raise ValueError(value)
        return value
    if option.kind == "integer":
        return _whole(value, math.ceil(option.low), math.floor(option.high))
    return _number(value, option.low, option.high)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict) or len(value) > MOST_NAMES:
        raise ValueError("no table, or too long")
    return value


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("no list, or too long")
    return value


def _name(value: Any) -> str:
    check_name("name", value)
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise ValueError("no text, or too long")
    return value


def _number(value: Any, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        raise ValueError(value)
    return float(value)


def _whole(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(value)
    return value
