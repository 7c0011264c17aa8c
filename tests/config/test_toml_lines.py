"""The locator against every way in which TOML can say where a key is."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.toml_lines import Path, key_lines, line_of

TEXT = '''\
# [not.a.table]
a = 1 # b = 2
"quoted key" = "[no]"
dotted . 'name'.x = 3
text = """
[inside]
z = 1 \\""" quoted""""
raw = \'\'\'
y = 1\'\'\'
list = [ # [c]
  1,
  { p = 1, q = [2,
    3] }, # two
  "]",
]

[one.two]
a = 2

[[many]]
x = 1
[[many.inner]]
y = 1
[[many.inner]]
y = 2
[many.inner.deep]
z = 3

[[many]]
[[many.inner]]
y = 3
inline = { a.b = 1, c = "}" }
last = 1979-05-27 07:32:00'''


def test_every_key_has_its_line() -> None:
    lines = key_lines(TEXT)
    expected: dict[Path, int] = {
        (): 1,
        ("a",): 2,
        ("quoted key",): 3,
        ("dotted", "name", "x"): 4,
        ("text",): 5,
        ("raw",): 8,
        ("list",): 10,
        ("list", 0): 11,
        ("list", 1): 12,
        ("list", 1, "q"): 12,
        ("list", 1, "q", 1): 13,
        ("list", 2): 14,
        ("one", "two"): 17,
        ("one", "two", "a"): 18,
        ("many",): 20,
        ("many", 0, "x"): 21,
        ("many", 0, "inner", 1, "y"): 25,
        ("many", 0, "inner", 1, "deep", "z"): 27,
        ("many", 1): 29,
        ("many", 1, "inner", 0, "y"): 31,
        ("many", 1, "inner", 0, "inline", "a", "b"): 32,
        ("many", 1, "inner", 0, "inline", "c"): 32,
        ("many", 1, "inner", 0, "last"): 33,
    }
    assert {path: lines.get(path) for path in expected} == expected
    assert ("inside",) not in lines and ("y",) not in lines and ("not",) not in lines


def test_what_is_missing_has_the_line_around_it() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, ("many", 1, "nothing", 4)) == 29
    assert line_of(lines, ("nothing",)) == 1


def test_windows_line_ends() -> None:
    assert key_lines("a = 1\r\n\r\n[b]\r\nc = 2\r\n")[("b", "c")] == 4


KEYS = st.one_of(st.sampled_from(["a", "b", "a-b", "1"]), st.text("ab. \"'=[]#\\\n", min_size=1, max_size=4))
VALUES = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.text("a\"'\\\n#[]{},=", max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case list():
            return "[\n" + ",\n".join(written(item) for item in value) + "\n]"
        case dict():
            return "{" + ", ".join(f"{quoted(key)} = {written(item)}" for key, item in value.items()) + "}"
    return str(value)


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(paths_of(item, (*path, key)) for key, item in items))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_finds_exactly_the_keys_that_the_parser_finds(data: dict[str, Any]) -> None:
    text = "\n# line\n".join(f"{quoted(key)} = {written(value)}" for key, value in data.items())
    assert tomllib.loads(text) == data
    lines = key_lines(text)
    assert set(lines) == paths_of(data)
    for key in data:
        assert text.split("\n")[lines[(key,)] - 1].startswith(quoted(key))
