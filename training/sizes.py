"""What the resolution ladder does with images sent at other sizes than a variant's own, and how many bytes they take.

    python -m training.sizes --data CACHE --out stretto/zoo

writes `accuracy_by_size` into metrics.json and `frame_bytes` into the profiles, which are otherwise left as they were
measured; and prints the table of docs/network.md. Needs onnxruntime and Pillow, and no GPU.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.profiling.accuracy import checked
from stretto.profiling.frames import frame_bytes
from stretto.profiling.sizes import accuracy_at_sizes, as_json
from stretto.repository.images import size_text
from stretto.repository.profiles import write_profile
from stretto.repository.read import read_repository

APPLICATION = "fashion_resolution"


def main() -> None:
    """Measure every variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with fashion.npz, from training.data")
    parser.add_argument("--out", type=Path, required=True, help="the zoo")
    options = parser.parse_args()
    application = read_repository(options.out / APPLICATION).applications[0]
    with np.load(options.data / "fashion.npz") as arrays:
        images = arrays["test_images"][:, None].astype(np.float32) / np.float32(255)
        data = checked(images, arrays["test_labels"], "the test split of Fashion-MNIST")
    print("| variant | frame bytes | " + " | ".join(map(size_text, application.input.sizes)) + " |")
    print("|---|" + "---|" * (1 + len(application.input.sizes)))
    for variant in application.variants:
        model = load_model(model_source(application, variant))
        found = accuracy_at_sizes(model, application, variant, data, batch=500)
        model.unload()
        path = variant.folder / "metrics.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["accuracy_by_size"] = as_json(found)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        sent_bytes = frame_bytes(application, variant)
        for profile in variant.profiles:
            write_profile(variant.profile_path(profile.kind), replace(profile, frame_bytes=sent_bytes))
        figures = " | ".join(f"{100 * accuracy:.1f}" for accuracy in found.values())
        print(f"| {variant.name} | {sent_bytes} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
