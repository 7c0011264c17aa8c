"""Policies in a file: safetensors, written and read with NumPy alone, with what they are for in its metadata.

The format is a length, a JSON header that says where each array lies, and the arrays. Nothing in it can be executed. A
file holds one policy, or one for each setting of instances that may be left when some fail (edge RL, section 6.3).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.edge_rl.policy import Description, Policy

FORMAT = 2
READABLE = (1, FORMAT)  # 1 says neither buffer nor latency: 15, and whatever the deployment decides by
MOST_BYTES = 64 << 20
MOST_HEADER = 1 << 20
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}
Path = str | os.PathLike[str]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """A file of safetensors; whole or not at all."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    parts: list[bytes] = []
    begin = 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": names[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [begin, begin + len(data)],
        }
        parts.append(data)
        begin += len(data)
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with open(f"{path}.part", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise StrettoError(f"{os.path.basename(path)}: cannot be written ({error.strerror})") from None


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays and the metadata of a file of safetensors; StrettoError where it is none."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file:
            whole = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StrettoError(f"{name}: cannot be read ({error.strerror})") from None
    try:
        size = int.from_bytes(whole[:8], "little")
        if len(whole) > MOST_BYTES or not 2 <= size <= min(MOST_HEADER, len(whole) - 8):
            raise ValueError("no header")
        header = json.loads(whole[8 : 8 + size])
        data = memoryview(whole)[8 + size :]
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        arrays = {}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= len(data):
                raise ValueError("an array outside the file")
            shape = tuple(int(length) for length in entry["shape"])
            arrays[str(key)] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(shape)
        return arrays, metadata
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StrettoError(f"{name}: not a file of safetensors, or damaged") from None


def save_policies(path: Path, policies: Sequence[Policy]) -> None:
    """Write policies, each for its own setting of instances."""
    arrays: dict[str, NDArray[Any]] = {}
    for number, policy in enumerate(policies):
        for place, (weight, bias) in enumerate(policy.layers):
            arrays[f"{number}.{place}.weight"] = weight.astype(np.float32)
            arrays[f"{number}.{place}.bias"] = bias.astype(np.float32)
    heads = [asdict(policy.description) | {"layers": len(policy.layers)} for policy in policies]
    write_arrays(path, arrays, {"stretto": json.dumps({"format": FORMAT, "policies": heads}, ensure_ascii=False)})


def load_policies(path: Path) -> tuple[Policy, ...]:
    """Read what `save_policies` wrote; anything else is refused."""
    name = os.path.basename(path)
    arrays, metadata = read_arrays(path)
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise StrettoError(f"{name}: damaged; a weight is no number")
    try:
        head = json.loads(metadata["stretto"])
        if head["format"] not in READABLE:
            raise StrettoError(f"{name}: written by a later version of Stretto; update it, or train the policy anew")
        policies = []
        for number, described in enumerate(head["policies"]):
            count = described.pop("layers")
            described["instances"] = tuple((str(v), float(ms), float(a)) for v, ms, a in described["instances"])
            layers = tuple(
                (arrays[f"{number}.{place}.weight"], arrays[f"{number}.{place}.bias"]) for place in range(count)
            )
            policies.append(Policy(Description(**described).checked(), layers))
        if not policies:
            raise ValueError("no policy")
        return tuple(policies)
    except StrettoError as error:  # a ValueError too
        raise StrettoError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    except (KeyError, TypeError, ValueError):
        raise StrettoError(f"{name}: not a policy of stretto train") from None


def fitting(policies: Sequence[Policy], wanted: Description, name: str) -> Policy:
    """The policy for these instances, or a sentence about what does not fit."""
    misfits = []
    for policy in policies:
        misfit = policy.description.misfit(wanted)
        if not misfit:
            return policy
        misfits.append(misfit)
    raise StrettoError(f"{name}: this policy {misfits[0]}; train one for the instances in use")
