"""Labels: the names of an application's classes, in the order of its output; in app.toml or labels.txt."""

from __future__ import annotations

from stretto.config.fields import ConfigError, Fields, shown
from stretto.repository.files import MAX_LABEL_BYTES, Place

DEFAULT_FILE = "labels.txt"
MAX_LABELS = 100_000
MAX_LABEL = 1000


def read_labels(output: Fields | None, folder: Place) -> tuple[tuple[str, ...], Place | None]:
    """The labels and the file that they came from; none where the application has none.

    Two classes may have the same label: ImageNet has two cranes.
    """
    in_place = output is not None and output.has("labels")
    named = output is not None and output.has("labels_file")
    default = folder.child(DEFAULT_FILE)
    if in_place:
        assert output is not None
        if named:
            output.fail("labels and labels_file both give labels; keep one", "labels_file")
        if default.exists():
            output.fail(f"labels are here and in {DEFAULT_FILE}; keep one of them", "labels")
        return _in_place(output), None
    if named:
        assert output is not None
        default = folder.named(output, "labels_file")
        if not default.exists():
            output.fail(f"labels_file is {shown(output.table['labels_file'])}, which is not there", "labels_file")
    elif not default.exists():
        return (), None
    return _from_file(default), default


def _in_place(output: Fields) -> tuple[str, ...]:
    labels = output.texts("labels")
    if not 1 <= len(labels) <= MAX_LABELS:
        output.fail(f"labels has {len(labels)} labels; give from 1 to {MAX_LABELS}", "labels")
    for position, label in enumerate(labels):
        if wrong := _wrong(label):
            output.fail(f"label {position + 1} {wrong}", "labels", position)
    return labels


def _from_file(place: Place) -> tuple[str, ...]:
    lines = place.text(MAX_LABEL_BYTES).replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ConfigError(place.label, "holds no label; write one a line, in the order of the output", 1)
    if len(lines) > MAX_LABELS:
        raise ConfigError(place.label, f"holds {len(lines)} labels; at most {MAX_LABELS} are taken", MAX_LABELS + 1)
    labels = tuple(line.strip() for line in lines)
    for number, label in enumerate(labels, start=1):
        if wrong := _wrong(label):
            raise ConfigError(place.label, f"this label {wrong}", number)
    return labels


def _wrong(label: str) -> str | None:
    if not label.strip():
        return "is empty; give every class a name"
    if len(label) > MAX_LABEL:
        return f"is longer than {MAX_LABEL} characters"
    if not label.isprintable():
        return "holds a control character; write plain text"
    return None
