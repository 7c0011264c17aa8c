"""The two latency tables of the Symphony paper, as they ship with the package."""

from __future__ import annotations

import pytest

from stretto.core.errors import ProfileError
from stretto.core.profile import NS_PER_MS
from stretto.core.published import TABLES, published_model, published_table


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_a_usable_profile(table: str) -> None:
    rows = published_table(table)
    assert len(rows) > 30
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.alpha_ms > 0 and row.beta_ms > 0
        assert row.alpha_ms + row.beta_ms < row.slo_ms, "a batch of one meets its SLO"
        assert row.profile("gpu", 4).latency_ns(4) == round((4 * row.alpha_ms + row.beta_ms) * NS_PER_MS)


def test_values_as_printed() -> None:
    row = published_model("symphony_1080ti:NASNetMobile")
    assert (row.alpha_ms, row.beta_ms, row.slo_ms) == (0.570, 14.348, 33)
    row = published_model("symphony_a100:EfficientNetB0")
    assert (row.alpha_ms, row.beta_ms, row.slo_ms) == (0.115, 4.326, 20)


def test_an_unknown_table_or_model_is_told_what_there_is() -> None:
    with pytest.raises(ProfileError, match="no published table 'v100'; there are symphony_1080ti, symphony_a100"):
        published_table("v100")
    with pytest.raises(ProfileError, match=r"table symphony_a100 has no model 'AlexNet'; it has .*ResNet50"):
        published_model("symphony_a100:AlexNet")
