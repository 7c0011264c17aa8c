"""A file with a partition, as `stretto partition --out` writes it; and one with rates by application."""

from __future__ import annotations

from pathlib import Path

from stretto.config.fields import MAX_FILE_BYTES, ConfigError, Fields, parse_json_fields
from stretto.core.partition import MAX_SUB_CLUSTERS, MAX_VERSION, Partition

MAX_RATE = 1e9


def read_partition(file: Path) -> Partition:
    """StrettoError, with the line of the mistake, where it is none."""
    return _partition(_json_file(file))


def parse_partition(text: str, label: str) -> Partition:
    """The same, from elsewhere than a file."""
    return _partition(parse_json_fields(text, label))


def _partition(top: Fields) -> Partition:
    version = top.integer("version", 0, MAX_VERSION, 1)
    clusters = top.integer("clusters", 1, MAX_SUB_CLUSTERS, 1)
    count = top.integer("sub_clusters", 1, MAX_SUB_CLUSTERS)
    homes = top.part("applications")
    if homes is None:
        top.fail("the top level needs applications, each with the number of its sub-cluster")
    top.done()
    with top.at("applications"):
        return Partition({name: homes.integer(name, 0, count - 1) for name in homes.table}, count, clusters, version)


def read_rates(file: Path) -> dict[str, float]:
    """Queries/s by application."""
    top = _json_file(file)
    return {name: top.number(name, 0.0, MAX_RATE) for name in top.table}


def _json_file(file: Path) -> Fields:
    try:
        if not file.is_file():
            raise ConfigError(str(file), "there is no such file")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(str(file), f"larger than {MAX_FILE_BYTES} bytes; it should be a short file")
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), f"not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(str(file), f"cannot be read ({error.strerror or 'input error'})") from None
    return parse_json_fields(text, str(file), file.parent)
