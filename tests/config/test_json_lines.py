"""The locator against what the JSON parser finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.fields import ConfigError, parse_json_fields
from stretto.config.json_lines import json_key_lines
from stretto.config.toml_lines import Path

TEXT = """\
{"a": 1, "b\\n{": [
  1,
  {"c": "}],",
   "d": []},
  null
],
"e": {}}
"""


def test_every_key_has_its_line() -> None:
    assert json_key_lines(TEXT) == {
        (): 1,
        ("a",): 1,
        ("b\n{",): 1,
        ("b\n{", 0): 2,
        ("b\n{", 1): 3,
        ("b\n{", 1, "c"): 3,
        ("b\n{", 1, "d"): 4,
        ("b\n{", 2): 5,
        ("e",): 7,
    }


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(paths_of(item, (*path, key)) for key, item in items))


KEYS = st.text("ab\"'\\\n{}[],: ", max_size=4)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.floats(allow_nan=False), st.booleans(), KEYS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from([None, 0, 2]))
def test_finds_exactly_the_keys_that_the_parser_finds(data: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(data, indent=indent)
    lines = json_key_lines(text)
    assert set(lines) == paths_of(data)
    if indent is not None:
        for key in data:
            assert text.split("\n")[lines[(key,)] - 1].strip().startswith(json.dumps(key))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{\n]", "x.json:2: not valid JSON: "),
        ("[1]", "x.json:1: must hold one JSON object"),
        ("[" * 100_000, "x.json:1: "),
        ('{"a": ' + "9" * 10_000 + "}", "x.json:1: holds a number with too many digits"),
    ],
)
def test_text_that_is_no_json_is_told_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_json_fields(text, "x.json")
    assert str(caught.value).startswith(says)


def test_a_wrong_value_has_its_line() -> None:
    fields = parse_json_fields('{\n"a": {\n"b": NaN}}', "x.json")
    part = fields.part("a")
    assert part is not None
    with pytest.raises(ConfigError, match=r"x\.json:3: b is nan; it must be from 0 to 1") as caught:
        part.number("b", 0, 1)
    assert (caught.value.label, caught.value.line) == ("x.json", 3)


def test_depth_is_bounded_in_the_locator() -> None:
    text = '{"a": ' + "[" * 400 + "1" + "]" * 400 + "}"
    assert max(len(path) for path in json_key_lines(text)) == 16
