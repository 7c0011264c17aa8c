"""What a client that is limited has left, and what its requests paid."""

from __future__ import annotations

from dataclasses import dataclass


class Account:
    """What is left of each limit at `at_ns`; more comes with time."""

    __slots__ = ("at_ns", "requests", "worker_ns")

    def __init__(self, now_ns: int, requests: float, worker_ns: float) -> None:
        self.at_ns, self.requests, self.worker_ns = now_ns, requests, worker_ns


@dataclass(slots=True)
class Charge:
    """What a request paid when it was admitted."""

    account: Account
    paid_ns: float

    def give_back(self) -> None:
        """What it asked for was refused for another reason. It counts as a request all the same."""
        self.account.worker_ns += self.paid_ns
