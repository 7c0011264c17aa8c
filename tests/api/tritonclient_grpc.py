"""NVIDIA's own gRPC client against a running server: every call that Stretto serves, as its users make them.

A program, not a test module: tritonclient brings its own definition of the protocol, and a process has room for one.

    python tritonclient_grpc.py --inference 127.0.0.1:8081 --management 127.0.0.1:8083 --application fashion

It needs tritonclient[grpc] and prints one line of JSON, {check: "pass" or what went wrong}.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

PATIENCE_S = 30.0
ROWS = 2
checks: dict[str, Callable[[Session], None]] = {}


class Session:
    """Clients of both addresses, and an application with inputs made up from its metadata.

    Inferences name a variant, because two variants may rightly give two answers.
    """

    def __init__(self, inference: str, management: str, application: str, token: str | None):
        self.inference = triton.InferenceServerClient(inference)
        self.management = triton.InferenceServerClient(management)
        self.headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.application = application
        metadata = self.inference.get_model_metadata(application, headers=self.headers)
        self.inputs = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in metadata.inputs]
        self.outputs = [tensor.name for tensor in metadata.outputs]
        self.version = metadata.versions[0]

    def tensors(self, rows: int = ROWS) -> list[Any]:
        """The same values from 0 to 1, every time. The first axis is the batch; other free axes have extent 1."""
        random = np.random.default_rng(7)
        tensors = []
        for name, datatype, shape in self.inputs:
            concrete = [rows, *(max(extent, 1) for extent in shape[1:])]
            if datatype == "BYTES":
                array = np.full(concrete, b"text", object)
            else:
                array = random.random(concrete).astype(triton_to_np_dtype(datatype))
            tensor = triton.InferInput(name, concrete, datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        return tensors

    def infer(self, **options: Any) -> Any:
        options = {"model_version": self.version, "headers": self.headers, "client_timeout": PATIENCE_S, **options}
        return self.inference.infer(self.application, options.pop("inputs", None) or self.tensors(), **options)

    def expected(self) -> np.ndarray:
        return self.infer().as_numpy(self.outputs[0])


def check(function: Callable[[Session], None]) -> Callable[[Session], None]:
    checks[function.__name__] = function
    return function


def status_of(call: Callable[[], Any]) -> str:
    """The status that a call fails with."""
    try:
        call()
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode.")
    raise AssertionError("the call was answered")


@check
def health(session: Session) -> None:
    for client in (session.inference, session.management):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready(session.application, headers=session.headers)
        assert client.is_model_ready(session.application, session.version, headers=session.headers)


@check
def metadata(session: Session) -> None:
    server = session.inference.get_server_metadata(headers=session.headers, as_json=True)
    assert server["name"] and server["version"], server
    model = session.inference.get_model_metadata(session.application, headers=session.headers, as_json=True)
    assert model["name"] == session.application, model
    assert model["versions"] and model["inputs"] and model["outputs"], model


@check
def config(session: Session) -> None:
    found = session.inference.get_model_config(session.application, headers=session.headers).config
    assert found.name == session.application
    assert found.max_batch_size > 0
    assert {tensor.name for tensor in found.input} == {name for name, *_ in session.inputs}
    assert {tensor.name for tensor in found.output} == set(session.outputs)
    assert all(tensor.data_type for tensor in [*found.input, *found.output])


@check
def statistics(session: Session) -> None:
    session.infer()
    found = session.inference.get_inference_statistics(session.application, headers=session.headers)
    assert found.model_stats
    assert {stats.name for stats in found.model_stats} == {session.application}
    assert sum(stats.inference_count for stats in found.model_stats) > 0
    every = session.inference.get_inference_statistics(headers=session.headers)
    assert len(every.model_stats) >= len(found.model_stats)


@check
def index(session: Session) -> None:
    found = session.management.get_model_repository_index(headers=session.headers)
    assert session.application in {model.name for model in found.models}


@check
def index_is_for_management(session: Session) -> None:
    call = session.inference.get_model_repository_index
    assert status_of(lambda: call(headers=session.headers)) == "PERMISSION_DENIED"


@check
def infer(session: Session) -> None:
    result = session.infer(request_id="one")
    response = result.get_response()
    assert response.id == "one"
    assert response.model_name == session.application
    assert response.model_version == session.version
    assert response.parameters["variant"].string_param == session.version
    for name in session.outputs:
        assert result.as_numpy(name).shape[0] == ROWS


@check
def infer_without_a_version(session: Session) -> None:
    response = session.infer(model_version="").get_response()
    assert response.model_version
    assert response.parameters["variant"].string_param


@check
def infer_on_management(session: Session) -> None:
    result = session.management.infer(session.application, session.tensors(), headers=session.headers)
    assert result.as_numpy(session.outputs[0]).shape[0] == ROWS


@check
def infer_with_parameters(session: Session) -> None:
    options: dict[str, Any] = {"parameters": {"deadline_ms": 10_000.0, "client_id": "camera"}, "priority": 3}
    assert session.infer(**options).get_response().parameters["variant"].string_param
    assert session.infer(timeout=10_000_000).get_response().parameters["variant"].string_param


@check
def wanted_outputs(session: Session) -> None:
    wanted = [triton.InferRequestedOutput(session.outputs[0])]
    response = session.infer(outputs=wanted).get_response()
    assert [output.name for output in response.outputs] == session.outputs[:1]


@check
def async_infer(session: Session) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    expected = session.expected()
    for n in range(8):
        session.inference.async_infer(
            session.application,
            session.tensors(),
            lambda result, error: answers.put((result, error)),
            model_version=session.version,
            request_id=str(n),
            headers=session.headers,
        )
    ids = set()
    for _ in range(8):
        result, error = answers.get(timeout=PATIENCE_S)
        assert error is None, error
        np.testing.assert_allclose(result.as_numpy(session.outputs[0]), expected, rtol=1e-3, atol=1e-4)
        ids.add(result.get_response().id)
    assert ids == {str(n) for n in range(8)}


def compressed(session: Session, algorithm: str) -> None:
    result = session.infer(compression_algorithm=algorithm).as_numpy(session.outputs[0])
    np.testing.assert_allclose(result, session.expected(), rtol=1e-3, atol=1e-4)


@check
def compressed_gzip(session: Session) -> None:
    compressed(session, "gzip")


@check
def compressed_deflate(session: Session) -> None:
    compressed(session, "deflate")


@check
def classification(session: Session) -> None:
    wanted = [triton.InferRequestedOutput(session.outputs[0], class_count=2)]
    best = session.infer(outputs=wanted).as_numpy(session.outputs[0])
    assert best.shape == (ROWS, 2), best.shape
    scores = session.expected().reshape(ROWS, -1)
    for row, classes in enumerate(best):
        score, number, *_ = classes[0].decode().split(":")
        assert int(number) == int(scores[row].argmax())
        assert abs(float(score) - float(scores[row].max())) <= 1e-3 * (1 + abs(float(score)))


@check
def stream(session: Session) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    expected = session.expected()
    session.inference.start_stream(lambda result, error: answers.put((result, error)), headers=session.headers)
    try:
        for n in range(8):
            options = {"model_version": session.version, "request_id": str(n)}
            session.inference.async_stream_infer(session.application, session.tensors(), **options)
        ids = set()
        for _ in range(8):
            result, error = answers.get(timeout=PATIENCE_S)
            assert error is None, error
            np.testing.assert_allclose(result.as_numpy(session.outputs[0]), expected, rtol=1e-3, atol=1e-4)
            ids.add(result.get_response().id)
        assert ids == {str(n) for n in range(8)}
    finally:
        session.inference.stop_stream()


@check
def error_inside_a_stream(session: Session) -> None:
    """It ends neither the stream nor the requests beside it."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    session.inference.start_stream(lambda result, error: answers.put((result, error)), headers=session.headers)
    try:
        session.inference.async_stream_infer("no-such-application", session.tensors(), request_id="bad")
        session.inference.async_stream_infer(session.application, session.tensors(), request_id="good")
        found = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
    finally:
        session.inference.stop_stream()
    assert sorted(error is None for _, error in found) == [False, True]
    assert [result.get_response().id for result, error in found if error is None] == ["good"]


def misshapen(session: Session) -> list[Any]:
    """The inputs with one axis too many."""
    tensors = []
    for name, datatype, shape in session.inputs:
        concrete = [1, *(max(extent, 1) for extent in shape[1:]), 2]
        tensor = triton.InferInput(name, concrete, datatype)
        dtype = np.object_ if datatype == "BYTES" else triton_to_np_dtype(datatype)
        tensor.set_data_from_numpy(np.zeros(concrete, dtype) if datatype != "BYTES" else np.full(concrete, b"", dtype))
        tensors.append(tensor)
    return tensors


@check
def wrong_shape(session: Session) -> None:
    assert status_of(lambda: session.infer(inputs=misshapen(session))) == "INVALID_ARGUMENT"


@check
def wrong_input_name(session: Session) -> None:
    stranger = triton.InferInput("no-such-input", [1, 1], "FP32")
    stranger.set_data_from_numpy(np.zeros((1, 1), np.float32))
    assert status_of(lambda: session.infer(inputs=[stranger])) == "INVALID_ARGUMENT"


@check
def unknown_model(session: Session) -> None:
    client, headers = session.inference, session.headers
    assert status_of(lambda: client.infer("no-such-application", session.tensors(), headers=headers)) == "NOT_FOUND"
    assert status_of(lambda: client.get_model_metadata("no-such-application", headers=headers)) == "NOT_FOUND"
    assert status_of(lambda: client.get_model_config("no-such-application", headers=headers)) == "NOT_FOUND"


@check
def unknown_version(session: Session) -> None:
    assert status_of(lambda: session.infer(model_version="no-such-variant")) == "NOT_FOUND"


def reload(session: Session) -> None:
    """Only on request (--reload): it stops the application for a moment."""
    session.management.unload_model(session.application, headers=session.headers)
    states = session.management.get_model_repository_index(headers=session.headers).models
    assert "READY" not in {model.state for model in states if model.name == session.application}
    session.management.load_model(session.application, headers=session.headers)
    assert session.management.is_model_ready(session.application, headers=session.headers)
    session.infer()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inference", required=True, metavar="HOST:PORT")
    parser.add_argument("--management", required=True, metavar="HOST:PORT")
    parser.add_argument("--application", required=True)
    parser.add_argument("--token", help="sent as a bearer token with every call")
    parser.add_argument("--reload", action="store_true", help="also unload the application and load it again")
    arguments = parser.parse_args()
    if arguments.reload:
        check(reload)
    results = {}
    session = Session(arguments.inference, arguments.management, arguments.application, arguments.token)
    for name, function in checks.items():
        try:
            function(session)
            results[name] = "pass"
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(results))
    return 0 if set(results.values()) == {"pass"} else 1


if __name__ == "__main__":
    sys.exit(main())
