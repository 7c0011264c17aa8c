"""A setting in a file: compressed arrays without pickled objects, and a head in JSON. The same setting, the same bytes.

Whatever is no such file is refused with a sentence, before memory is taken for what it claims to hold.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import check_name
from stretto.core.errors import StrettoError
from stretto.core.npz import check_arrays
from stretto.core.plan import Delays
from stretto.core.profile import Quantile
from stretto.sim.residuals import Residuals
from stretto.twin.classes import Labelled
from stretto.twin.clients import MOST_CLIENTS as MOST_CONDITIONS
from stretto.twin.clients import ClientConditions
from stretto.twin.recent import MOST_CLIENTS, MOST_DELAYS, MOST_NAMES
from stretto.twin.setting import Setting
from stretto.twin.stretch import MOST_REQUESTS, REQUEST, ArrivalStretch

FORMAT = "stretto setting"
VERSION = 1
MAX_BYTES = 1 << 28
MAGIC = b"PK\x03\x04"
MOST_WORKERS = 65_536


def is_setting_file(path: Path) -> bool:
    """By its first bytes; a file that cannot be read is none."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def save_setting(path: Path, setting: Setting) -> None:
    """Whole or not at all: what was there before stays until the new file is complete."""
    arrays: dict[str, NDArray[Any]] = {}
    applications = []
    for number, (name, stretch) in enumerate(setting.arrivals.items()):
        applications.append(
            {
                "name": name,
                "rate": stretch.rate,
                "dispersion": [value if math.isfinite(value) else None for value in stretch.dispersion],
                "span_ns": stretch.span_ns,
                "class_shares": list(stretch.class_shares),
            }
        )
        for field in REQUEST.names or ():
            arrays[f"{number}.{field}"] = np.ascontiguousarray(stretch.requests[field])
    samples = [
        (where, bucket, sample)
        for where, residuals in setting.residuals.items()
        for bucket, sample in residuals.by_bucket.items()
    ]
    head = {
        "format": FORMAT,
        "version": VERSION,
        "applications": applications,
        "residuals": [[*where, bucket, len(sample)] for where, bucket, sample in samples],
        "delays": asdict(setting.delays),
        "present": dict(setting.present),
        "row": None if setting.row is None else setting.row.name,
        "networks": {str(client): list(rates) for client, rates in setting.networks.items()},
        "clients": [_stated_client(client) for client in setting.clients],
        "ladders": {name: list(ladder) for name, ladder in setting.ladders.items()},
        "evidence": list(setting.evidence),
    }
    for number, labelled in enumerate(setting.evidence.values()):
        for field in ("theta", "labels", "weights"):
            arrays[f"evidence.{number}.{field}"] = getattr(labelled, field)
    arrays["ratios"] = np.concatenate([np.zeros(0), *(sample for _, _, sample in samples)])
    arrays["handoff_ns"], arrays["overrun_ns"] = setting.handoff_ns, setting.overrun_ns
    arrays["head"] = np.frombuffer(json.dumps(head, allow_nan=False).encode(), dtype=np.uint8)
    _write(path, arrays)


def _write(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StrettoError(f"{path.name}: cannot be written ({error.strerror})") from None


def load_setting(path: Path) -> Setting:
    """What `save_setting` wrote; anything else is refused."""
    name = path.name
    try:
        with zipfile.ZipFile(path) as archive:
            if not check_arrays(archive, MAX_BYTES):
                raise StrettoError(f"{name}: too large for a setting")
        with np.load(path, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes().decode())
            if (head["format"], head["version"]) != (FORMAT, VERSION):
                raise StrettoError(f"{name}: a setting of another version; measure it anew")
            return _setting(head, arrays)
    except StrettoError as error:
        raise error if str(error).startswith(f"{name}: ") else StrettoError(f"{name}: {error}") from None
    except OSError as error:
        raise StrettoError(f"{name}: cannot be read ({error.strerror or 'not a setting'})") from None
    except Exception:  # zipfile, zlib, json and numpy raise a dozen kinds on files that are cut short or made up
        raise StrettoError(f"{name}: not a setting, or damaged") from None


def _setting(head: Any, arrays: Any) -> Setting:
    if not len(head["applications"]) <= MOST_NAMES or not len(head["networks"]) <= MOST_CLIENTS:
        raise ValueError("more than a setting can hold")
    arrivals = {}
    for number, stated in enumerate(head["applications"]):
        check_name("application", stated["name"])
        arrivals[stated["name"]] = _stretch(stated, number, arrays)
    present = {str(kind): _whole(count, MOST_WORKERS) for kind, count in head["present"].items()}
    for kind in present:
        check_name("worker kind", kind)
    return Setting(
        arrivals=arrivals,
        residuals=_residuals(head["residuals"], _numbers(arrays["ratios"], "f")),
        delays=Delays(**{field: _whole(value) for field, value in head["delays"].items()}),
        present=present,
        handoff_ns=_numbers(arrays["handoff_ns"], "i", MOST_DELAYS),
        overrun_ns=_numbers(arrays["overrun_ns"], "i", MOST_DELAYS),
        networks={
            _whole(int(client)): tuple(_positive(rate) for rate in rates) for client, rates in head["networks"].items()
        },
        row=None if head.get("row") is None else Quantile[head["row"]],
        clients=_clients(head.get("clients", [])),  # settings of before clients were kept have none
        ladders=_ladders(head.get("ladders", {})),
        evidence=_evidence(head.get("evidence", []), arrays),
    )


def _stated_client(client: ClientConditions) -> list[Any]:
    bandwidths = list(client.bytes_per_s)
    return [client.application, client.rate, client.slo_ns, client.delay_ns, client.frame_ratio, bandwidths]


def _clients(stated: Any) -> tuple[ClientConditions, ...]:
    if len(stated) > MOST_CONDITIONS:
        raise ValueError("more clients than a setting can hold")
    clients = []
    for application, rate, slo_ns, delay_ns, frame_ratio, bandwidths in stated:
        check_name("application", application)
        due_ns = None if slo_ns is None else _whole(slo_ns)
        known = tuple(_positive(bandwidth) for bandwidth in bandwidths)
        clients.append(
            ClientConditions(application, _positive(rate), known, due_ns, _whole(delay_ns), _positive(frame_ratio))
        )
    return tuple(clients)


def _evidence(names: Any, arrays: Any) -> dict[str, Labelled]:
    if len(names) > MOST_NAMES:
        raise ValueError("more applications than a setting can hold")
    evidence = {}
    for number, name in enumerate(names):
        check_name("application", name)
        theta, labels = arrays[f"evidence.{number}.theta"], _numbers(arrays[f"evidence.{number}.labels"], "i")
        weights = f"evidence.{number}.weights"  # which older files do not have
        stated = _numbers(arrays[weights], "f") if weights in arrays else np.zeros(0)
        if theta.dtype.kind != "f":
            raise ValueError("not probabilities")
        evidence[name] = Labelled(theta, labels, stated)
    return evidence


def _ladders(stated: Any) -> dict[str, tuple[str, ...]]:
    for application, names in stated.items():
        if len(names) > MOST_NAMES:
            raise ValueError("more variants than an application can have")
        check_name("application", application)
        for name in names:
            check_name("variant", name)
    return {application: tuple(names) for application, names in stated.items()}


def _stretch(stated: Any, number: int, arrays: Any) -> ArrivalStretch:
    columns = {field: _numbers(arrays[f"{number}.{field}"], "i", MOST_REQUESTS) for field in REQUEST.names or ()}
    requests = np.zeros(len(columns["offset_ns"]), dtype=REQUEST)
    for field, values in columns.items():
        if values.shape != requests.shape or values.dtype != REQUEST[field]:
            raise ValueError("columns of one table that do not go together")
        requests[field] = values
    if not ((requests["slack_ns"] >= -1) & (requests["slack_ns"] <= 2**61)).all():
        raise ValueError("a slack out of its range")
    return ArrivalStretch(
        rate=float(stated["rate"]),
        dispersion=tuple(math.nan if value is None else float(value) for value in stated["dispersion"]),
        span_ns=_whole(stated["span_ns"]),
        requests=requests,
        class_shares=tuple(float(share) for share in stated["class_shares"]),
    )


def _residuals(stated: Any, ratios: NDArray[Any]) -> dict[tuple[str, str], Residuals]:
    by_bucket: dict[tuple[str, str], dict[int, NDArray[Any]]] = {}
    at = 0
    for label, kind, bucket, count in stated:
        for part in (*str(label).split("/", 1), kind):
            check_name("name", part)
        by_bucket.setdefault((label, kind), {})[_whole(bucket)] = ratios[at : at + _whole(count)]
        at += count
    if at != len(ratios):
        raise ValueError("ratios that no variant has")
    return {where: Residuals(samples) for where, samples in by_bucket.items()}


def _numbers(values: NDArray[Any], kind: str, most: int | None = None) -> NDArray[Any]:
    if values.ndim != 1 or values.dtype.kind != kind or (most is not None and len(values) > most):
        raise ValueError("not a list of numbers, or too long")
    return values


def _whole(value: Any, most: int = 2**62) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(value)
    return value


def _positive(value: Any) -> float:
    if not 0 < float(value) <= 1e12:
        raise ValueError(value)
    return float(value)
