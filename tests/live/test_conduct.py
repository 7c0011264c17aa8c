"""When a model that fails now and then has failed too often."""

from __future__ import annotations

from stretto.live.conduct import Conduct, Lately


def test_three_batches_in_a_row_without_an_answer_are_too_many() -> None:
    lately = Lately()
    assert [lately.failed(True), lately.failed(True)] == ["", ""]
    lately.passed()
    assert [lately.failed(True), lately.failed(True)] == ["", ""]
    assert lately.failed(True) == "it failed on 3 batches in a row"


def test_a_batch_that_was_answered_in_part_ends_the_row() -> None:
    lately = Lately()
    assert [lately.failed(True), lately.failed(True), lately.failed(False), lately.failed(True)] == [""] * 4


def test_a_fifth_of_the_last_hundred_batches_is_too_much() -> None:
    lately = Lately()
    for _ in range(19):
        assert lately.failed(False) == ""
        for _ in range(4):
            lately.passed()
    assert lately.failed(False) == "it failed on 20 of its last 96 batches"


def test_less_than_a_fifth_is_borne_for_ever() -> None:
    lately = Lately()
    for _ in range(200):
        assert lately.failed(False) == ""
        for _ in range(5):
            lately.passed()


def test_what_is_a_hundred_batches_ago_is_forgotten() -> None:
    conduct = Conduct()
    conduct.suspected.failed(True)
    for _ in range(99):
        conduct.passed()
    assert not conduct.is_clean
    conduct.passed()
    assert conduct.is_clean
