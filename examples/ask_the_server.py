"""Asks a running server (`stretto serve zoo`) with three deadlines, and shows which variant answered each.

python examples/ask_the_server.py
"""

from __future__ import annotations

from stretto.cli.queries import zoo_sample
from stretto.client import Client, StrettoClientError


def main() -> None:
    images, labels = zoo_sample("fashion")
    with Client("http://127.0.0.1:8080") as client:
        for deadline_ms in (100.0, 10.0, 1.0):
            try:
                answer = client.infer("fashion", images[:1], deadline_ms=deadline_ms)
            except StrettoClientError as error:
                print(f"within {deadline_ms:g} ms: no answer ({error})")
                continue
            print(
                f"within {deadline_ms:g} ms: {answer.variant} says class {answer.output.argmax()} (it is {labels[0]}), "
                f"{answer.expected_accuracy:.1%} accurate, {answer.slack_ms:.1f} ms to spare"
            )


if __name__ == "__main__":
    main()
