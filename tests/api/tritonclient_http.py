"""NVIDIA's own HTTP client against a running server: every address that Stretto serves, as its users call them.

    python tritonclient_http.py --inference 127.0.0.1:8080 --management 127.0.0.1:8082 --application fashion

It needs tritonclient[http] and prints one line of JSON, {check: "pass" or what went wrong}.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

PATIENCE_S = 30.0
ROWS = 2
checks: dict[str, Callable[[Session], None]] = {}


class Session:
    """Clients of both addresses, and an application with inputs made up from its metadata.

    Inferences name a variant, because two variants may rightly give two answers.
    """

    def __init__(self, inference: str, management: str, application: str, token: str | None):
        patience = {"connection_timeout": PATIENCE_S, "network_timeout": PATIENCE_S}
        self.inference = triton.InferenceServerClient(inference, concurrency=8, **patience)
        self.management = triton.InferenceServerClient(management, **patience)
        self.management_url = f"http://{management}"
        self.token = token
        self.application = application
        metadata = self.inference.get_model_metadata(application, headers=self.headers)
        self.inputs = [(tensor["name"], tensor["datatype"], tensor["shape"]) for tensor in metadata["inputs"]]
        self.outputs = [tensor["name"] for tensor in metadata["outputs"]]
        self.version = metadata["versions"][0]

    @property
    def headers(self) -> dict[str, str]:
        """New ones for every call: the client writes its own into what it is given."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def tensors(self, is_binary: bool = True, extra_axes: tuple[int, ...] = ()) -> list[Any]:
        """The same values from 0 to 1, every time. The first axis is the batch; other free axes have extent 1."""
        random = np.random.default_rng(7)
        tensors = []
        for name, datatype, shape in self.inputs:
            concrete = [ROWS, *(max(extent, 1) for extent in shape[1:]), *extra_axes]
            if datatype == "BYTES":
                array = np.full(concrete, b"text", object)
            else:
                array = random.random(concrete).astype(triton_to_np_dtype(datatype))
            tensor = triton.InferInput(name, concrete, datatype)
            tensor.set_data_from_numpy(array, binary_data=is_binary)
            tensors.append(tensor)
        return tensors

    def infer(self, **options: Any) -> Any:
        options = {"model_version": self.version, "headers": self.headers, **options}
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
        assert error.message(), "the answer has no message"
        return str(error.status())
    raise AssertionError("the call was answered")


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@check
def health(session: Session) -> None:
    for client in (session.inference, session.management):
        assert client.is_server_live(headers=session.headers)
        assert client.is_server_ready(headers=session.headers)
        assert client.is_model_ready(session.application, headers=session.headers)
        assert client.is_model_ready(session.application, session.version, headers=session.headers)


@check
def health_needs_no_token(session: Session) -> None:
    assert session.inference.is_server_live()
    assert session.inference.is_server_ready()


@check
def metadata(session: Session) -> None:
    server = session.inference.get_server_metadata(headers=session.headers)
    assert server["name"] and server["version"] and isinstance(server["extensions"], list), server
    model = session.inference.get_model_metadata(session.application, headers=session.headers)
    assert model["name"] == session.application, model
    assert model["versions"] and model["inputs"] and model["outputs"], model
    one = session.inference.get_model_metadata(session.application, session.version, headers=session.headers)
    assert one["name"] == session.application, one


@check
def config(session: Session) -> None:
    found = session.inference.get_model_config(session.application, headers=session.headers)
    assert found["name"] == session.application
    assert found["max_batch_size"] > 0
    assert {tensor["name"] for tensor in found["input"]} == {name for name, *_ in session.inputs}
    assert {tensor["name"] for tensor in found["output"]} == set(session.outputs)
    assert all(tensor["data_type"].startswith("TYPE_") for tensor in [*found["input"], *found["output"]])


@check
def statistics(session: Session) -> None:
    session.infer()
    found = session.inference.get_inference_statistics(session.application, headers=session.headers)["model_stats"]
    assert {stats["name"] for stats in found} == {session.application}
    assert sum(stats["inference_count"] for stats in found) > 0
    assert all("success" in stats["inference_stats"] for stats in found)
    every = session.inference.get_inference_statistics(headers=session.headers)["model_stats"]
    assert len(every) >= len(found)


@check
def index(session: Session) -> None:
    found = session.management.get_model_repository_index(headers=session.headers)
    assert session.application in {model["name"] for model in found}


@check
def index_is_for_management(session: Session) -> None:
    call = session.inference.get_model_repository_index
    assert status_of(lambda: call(headers=session.headers)) == "403"


@check
def metrics(session: Session) -> None:
    request = urllib.request.Request(f"{session.management_url}/metrics", headers=session.headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        assert response.status == 200
        assert b"# TYPE " in response.read()


@check
def infer(session: Session) -> None:
    result = session.infer(request_id="one")
    response = result.get_response()
    assert response["id"] == "one"
    assert response["model_name"] == session.application
    assert response["model_version"] == session.version
    assert response["parameters"]["variant"] == session.version
    assert response["parameters"]["outcome"] in ("on_time", "late")
    for name in session.outputs:
        assert result.as_numpy(name).shape[0] == ROWS


@check
def infer_json(session: Session) -> None:
    """Numbers as text both ways."""
    wanted = [triton.InferRequestedOutput(name, binary_data=False) for name in session.outputs]
    result = session.infer(inputs=session.tensors(is_binary=False), outputs=wanted)
    assert "data" in result.get_output(session.outputs[0])
    assert_close(result.as_numpy(session.outputs[0]), session.expected())


@check
def infer_binary_in_json_out(session: Session) -> None:
    wanted = [triton.InferRequestedOutput(session.outputs[0], binary_data=False)]
    assert_close(session.infer(outputs=wanted).as_numpy(session.outputs[0]), session.expected())


@check
def infer_json_in_binary_out(session: Session) -> None:
    wanted = [triton.InferRequestedOutput(session.outputs[0], binary_data=True)]
    result = session.infer(inputs=session.tensors(is_binary=False), outputs=wanted)
    assert "data" not in result.get_output(session.outputs[0])
    assert_close(result.as_numpy(session.outputs[0]), session.expected())


@check
def infer_without_a_version(session: Session) -> None:
    response = session.infer(model_version="").get_response()
    assert response["model_version"] and response["parameters"]["variant"]


@check
def infer_on_management(session: Session) -> None:
    result = session.management.infer(session.application, session.tensors(), headers=session.headers)
    assert result.as_numpy(session.outputs[0]).shape[0] == ROWS


@check
def infer_with_parameters(session: Session) -> None:
    options: dict[str, Any] = {"parameters": {"deadline_ms": 10_000.0, "client_id": "camera"}, "priority": 3}
    assert session.infer(**options).get_response()["parameters"]["variant"]
    assert session.infer(timeout=10_000_000).get_response()["parameters"]["variant"]


@check
def wanted_outputs(session: Session) -> None:
    wanted = [triton.InferRequestedOutput(session.outputs[0])]
    response = session.infer(outputs=wanted).get_response()
    assert [output["name"] for output in response["outputs"]] == session.outputs[:1]


@check
def async_infer(session: Session) -> None:
    expected = session.expected()
    waiting = [
        session.inference.async_infer(
            session.application,
            session.tensors(),
            model_version=session.version,
            request_id=str(n),
            headers=session.headers,
        )
        for n in range(8)
    ]
    for n, answer in enumerate(waiting):
        result = answer.get_result(timeout=PATIENCE_S)
        assert result.get_response()["id"] == str(n)
        assert_close(result.as_numpy(session.outputs[0]), expected)


def compressed(session: Session, **algorithms: str) -> None:
    assert_close(session.infer(**algorithms).as_numpy(session.outputs[0]), session.expected())


@check
def compressed_request_gzip(session: Session) -> None:
    compressed(session, request_compression_algorithm="gzip")


@check
def compressed_request_deflate(session: Session) -> None:
    compressed(session, request_compression_algorithm="deflate")


@check
def compressed_response_gzip(session: Session) -> None:
    compressed(session, response_compression_algorithm="gzip")


@check
def compressed_response_deflate(session: Session) -> None:
    compressed(session, response_compression_algorithm="deflate")


@check
def compressed_both_ways(session: Session) -> None:
    compressed(session, request_compression_algorithm="gzip", response_compression_algorithm="deflate")


@check
def classification(session: Session) -> None:
    for is_binary in (True, False):
        wanted = [triton.InferRequestedOutput(session.outputs[0], binary_data=is_binary, class_count=2)]
        best = session.infer(outputs=wanted).as_numpy(session.outputs[0])
        assert best.shape == (ROWS, 2), best.shape
        scores = session.expected().reshape(ROWS, -1)
        for row, classes in enumerate(best):
            first = classes[0].decode() if isinstance(classes[0], bytes) else str(classes[0])
            score, number, *_ = first.split(":")
            assert int(number) == int(scores[row].argmax())
            assert abs(float(score) - float(scores[row].max())) <= 1e-3 * (1 + abs(float(score)))


@check
def wrong_shape(session: Session) -> None:
    for is_binary in (True, False):
        inputs = session.tensors(is_binary, extra_axes=(2,))
        assert status_of(lambda inputs=inputs: session.infer(inputs=inputs)) == "400"


@check
def wrong_input_name(session: Session) -> None:
    stranger = triton.InferInput("no-such-input", [1, 1], "FP32")
    stranger.set_data_from_numpy(np.zeros((1, 1), np.float32))
    assert status_of(lambda: session.infer(inputs=[stranger])) == "400"


@check
def unknown_model(session: Session) -> None:
    client, name = session.inference, "no-such-application"
    assert status_of(lambda: client.infer(name, session.tensors(), headers=session.headers)) == "404"
    assert status_of(lambda: client.get_model_metadata(name, headers=session.headers)) == "404"
    assert status_of(lambda: client.get_model_config(name, headers=session.headers)) == "404"


@check
def unknown_version(session: Session) -> None:
    assert status_of(lambda: session.infer(model_version="no-such-variant")) == "404"


def reload(session: Session) -> None:
    """Only on request (--reload): it stops the application for a moment."""
    session.management.unload_model(session.application, headers=session.headers)
    states = session.management.get_model_repository_index(headers=session.headers)
    assert "READY" not in {model["state"] for model in states if model["name"] == session.application}
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
