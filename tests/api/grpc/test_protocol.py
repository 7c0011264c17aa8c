"""Our definition has the protocol's names, numbers, types and labels, and the generated code is current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from stretto.api.grpc import open_inference_pb2 as protocol
from tests.api.grpc import describe_protocol

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
PROTO = "stretto/api/grpc/open_inference.proto"


def test_numbers_are_those_of_the_protocol() -> None:
    """The lines were taken from tritonclient 2.73, not from our own definition."""
    expected = (HERE / "protocol_lines.txt").read_text().splitlines()
    assert sorted(describe_protocol.describe(protocol.DESCRIPTOR)) == expected


def test_numbers_are_those_of_the_installed_tritonclient(tritonclient_python: str) -> None:
    modules = ["tritonclient.grpc.service_pb2", "tritonclient.grpc.model_config_pb2"]
    command = [tritonclient_python, str(HERE / "describe_protocol.py"), *modules]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert sorted(set(describe_protocol.describe(protocol.DESCRIPTOR)) - set(theirs)) == []


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    compiled = tmp_path / "compiled"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={compiled}", f"{ROOT}/{PROTO}"]) == 0
    [current] = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    checked_in = descriptor_pb2.FileDescriptorProto.FromString(protocol.DESCRIPTOR.serialized_pb)
    for file in (current, checked_in):
        drop_json_names(file.message_type)  # only a descriptor set spells them out
    assert current == checked_in, "run: make proto"


def drop_json_names(messages: object) -> None:
    for message in messages:  # type: ignore[attr-defined]
        for field in message.field:
            field.ClearField("json_name")
        drop_json_names(message.nested_type)


def test_errors_need_no_grpc() -> None:
    """The data plane and HTTP work where grpcio is missing."""
    program = "import sys; sys.modules['grpc'] = None; import stretto.api.errors, stretto.api.grpc"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
