"""Fields, enums and calls of protobuf modules as lines of text, so that two definitions of a protocol can be compared.

Also a program, because two definitions of one package cannot live in one process: give it names of modules.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

TYPES = {
    **{1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string"},
    **{11: "message", 12: "bytes", 13: "uint32", 14: "enum"},
}
REPEATED = 3


def describe(file: Any) -> Iterator[str]:
    """`file` is the DESCRIPTOR of a generated module."""
    for message in file.message_types_by_name.values():
        yield from describe_message(message)
    for enum in file.enum_types_by_name.values():
        yield from describe_enum(enum)
    for service in file.services_by_name.values():
        for call in service.methods:
            request = f"{'stream ' if call.client_streaming else ''}{call.input_type.full_name}"
            response = f"{'stream ' if call.server_streaming else ''}{call.output_type.full_name}"
            yield f"{service.full_name}/{call.name} {request} -> {response}"


def describe_message(message: Any) -> Iterator[str]:
    yield f"{message.full_name}{' map entry' if message.GetOptions().map_entry else ''}"
    for field in message.fields:
        is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == REPEATED
        named = field.message_type or field.enum_type
        words = [f"{message.full_name}.{field.name} = {field.number}", "repeated" if is_repeated else "single"]
        words += [TYPES[field.type]] + ([named.full_name] if named else [])
        words += [f"oneof {field.containing_oneof.name}"] if field.containing_oneof else []
        yield " ".join(words)
    for nested in message.nested_types:
        yield from describe_message(nested)
    for enum in message.enum_types:
        yield from describe_enum(enum)


def describe_enum(enum: Any) -> Iterator[str]:
    for value in enum.values:
        yield f"{enum.full_name}.{value.name} = {value.number}"


if __name__ == "__main__":
    for module in sys.argv[1:]:
        print("\n".join(describe(importlib.import_module(module).DESCRIPTOR)))
