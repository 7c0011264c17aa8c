"""Where each key of a JSON document stands: key path → line. Reads only text that the parser has already accepted."""

from __future__ import annotations

import json
import re

from stretto.config.toml_lines import Path

MAX_DEPTH = 16  # deeper than any file of ours; what lies below has the line of what is around it
# Strings first, so that no sign inside one counts; numbers and words are runs of anything else.
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+')


def json_key_lines(text: str) -> dict[Path, int]:
    """The line (from 1) of every object, key and list element. The empty path is line 1.

    Keeps its own stack: nesting that the parser takes must not overflow the locator.
    """
    lines: dict[Path, int] = {(): 1}
    steps: list[str | int | None] = []  # per open object its key (None until there is one), per open list its position
    in_object: list[bool] = []
    line, seen = 1, 0
    for token in TOKEN.finditer(text):
        line += text.count("\n", seen, token.start())
        seen = token.start()
        sign = token.group()
        if sign in "}]":
            steps.pop()
            in_object.pop()
            continue
        if sign == ":":
            continue
        if sign == ",":
            position = steps[-1]
            steps[-1] = position + 1 if isinstance(position, int) else None
            continue
        if in_object and in_object[-1] and steps[-1] is None:
            steps[-1] = json.loads(sign)
        if 0 < len(steps) <= MAX_DEPTH:
            lines.setdefault(tuple(step for step in steps if step is not None), line)
        if sign in "{[":
            steps.append(None if sign == "{" else 0)
            in_object.append(sign == "{")
    return lines
