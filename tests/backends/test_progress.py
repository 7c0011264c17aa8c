"""How far a load is: told step by step, to whoever loads in the same thread."""

from __future__ import annotations

import threading

from stretto.backends.load import load_model
from stretto.backends.progress import prepared, telling
from stretto.backends.source import ModelSource
from stretto.repository.read import zoo_folder


def test_a_model_that_is_prepared_for_several_batches_tells_after_each() -> None:
    model = load_model(ModelSource("onnx", zoo_folder() / "mnist" / "variants" / "linear" / "model.onnx"))
    told: list[float] = []
    with telling(told.append):
        model.prepare((1, 2, 4, 8))
    assert told == [0, 0.25, 0.5, 0.75]
    model.prepare((16, 32))
    assert len(told) == 4, "nobody is told after it"


def test_loads_in_two_threads_tell_their_own() -> None:
    told: dict[str, list[float]] = {"here": [], "there": []}
    began, may_go_on = threading.Event(), threading.Event()

    def there() -> None:
        with telling(told["there"].append):
            prepared(1, 4)
            began.set()
            may_go_on.wait(10)
            prepared(2, 4)

    thread = threading.Thread(target=there)
    with telling(told["here"].append):
        thread.start()
        assert began.wait(10)
        prepared(1, 2)
        may_go_on.set()
        thread.join()
    assert told == {"here": [0.5], "there": [0.25, 0.5]}


def test_one_step_and_nobody_who_listens_are_no_news() -> None:
    told: list[float] = []
    with telling(told.append):
        prepared(0, 1)
    prepared(1, 2)
    assert told == []
