"""What a load reads of an application's configuration, whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.client.metadata import MAX_NAME, MAX_VARIANTS, ApplicationConfiguration, application_configuration

LONGEST = ",".join(f"{number:0{MAX_NAME}}" for number in range(MAX_VARIANTS))


def configuration(**parameters: Any) -> dict[str, Any]:
    return {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}


def test_the_slo_and_the_ladder() -> None:
    told = application_configuration(configuration(slo_ms="50", ladder="fast,good"))
    assert told == ApplicationConfiguration(50.0, ("fast", "good"))
    assert len(application_configuration(configuration(ladder=LONGEST)).ladder) == MAX_VARIANTS
    assert application_configuration(configuration(ladder="a,b,a")).ladder == ("a", "b")


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"parameters": None},
        {"parameters": []},
        {"parameters": {"ladder": "fast", "slo_ms": 50}},
        {"parameters": {"ladder": {"string_value": ["fast"]}, "slo_ms": {"string_value": 50}}},
        configuration(ladder="", slo_ms=""),
        configuration(ladder="fast,", slo_ms="soon"),
        configuration(ladder="x" * (MAX_NAME + 1), slo_ms="nan"),
        configuration(ladder=LONGEST + ",more", slo_ms="inf"),
        configuration(ladder=",".join(map(str, range(MAX_VARIANTS + 1))), slo_ms="-1"),
    ],
)
def test_what_is_not_understood_is_as_if_nobody_had_told(content: Any) -> None:
    assert application_configuration(content) == ApplicationConfiguration()
