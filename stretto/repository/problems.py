"""What is wrong with a repository, gathered: a reader goes on after a mistake, so that all of them show at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import ParamSpec, TypeVar

from stretto.config.fields import ConfigError, Fields
from stretto.core.errors import StrettoError

MAX_PROBLEMS = 1000
SHOWN = 5

Given = ParamSpec("Given")
Read = TypeVar("Read")
Default = TypeVar("Default")


@dataclass(frozen=True)
class Problem:
    """A sentence about a file; an error keeps the repository from being used, a warning does not."""

    message: str
    file: str | None = None
    line: int | None = None
    is_error: bool = True

    def __str__(self) -> str:
        where = "" if self.file is None else f"{self.file}: " if self.line is None else f"{self.file}:{self.line}: "
        return where + self.message


class RepositoryError(StrettoError):
    """A repository that cannot be used; `problems` has everything that was found."""

    def __init__(self, problems: tuple[Problem, ...], reference: str) -> None:
        shown = [str(problem) for problem in problems[:SHOWN]]
        if len(problems) > SHOWN:
            shown.append(f"and {len(problems) - SHOWN} more; stretto check {reference} shows them all")
        super().__init__("\n".join(shown))
        self.problems = problems
        self.reference = reference

    @property
    def reason(self) -> str:
        """In one line, with files as they are called inside the folder that the error is of."""
        shown = [str(replace(each, file=self._inside(each.file))) for each in self.problems[:SHOWN]]
        more = len(self.problems) - len(shown)
        return "; ".join([*shown, *([f"and {more} more; run stretto check {self.reference}"] if more else [])])

    def _inside(self, file: str | None) -> str | None:
        return None if file is None or file == self.reference else file.removeprefix(f"{self.reference}/")


@dataclass(frozen=True)
class Unreadable:
    """An application that cannot be used as its files are now, and all that is wrong with them. `label` is its folder
    as people call it.
    """

    name: str
    label: str
    problems: tuple[Problem, ...]

    @property
    def reason(self) -> str:
        """In one line, with files as they are called inside its folder."""
        return self.error().reason

    def error(self) -> RepositoryError:
        return RepositoryError(self.problems, self.label)


@dataclass
class Problems:
    """The list while it grows."""

    found: list[Problem] = field(default_factory=list)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.found if problem.is_error)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.found if not problem.is_error)

    def add(self, problem: Problem) -> None:
        if len(self.found) < MAX_PROBLEMS:
            self.found.append(problem)

    def warn(self, file: str | None, message: str, line: int | None = None) -> None:
        self.add(Problem(message, file, line, is_error=False))

    def gathered(self) -> AbstractContextManager[bool | None]:
        """What is refused inside is added here, and the reader goes on behind it."""
        return _Gathered(self)

    def attempt(
        self, default: Default, read: Callable[Given, Read], *args: Given.args, **kwargs: Given.kwargs
    ) -> Read | Default:
        """What `read` gives; `default` where it refuses, with its reason added here."""
        with self.gathered():
            return read(*args, **kwargs)
        return default

    def refuse_unknown(self, fields: Fields, homes: Mapping[str, str] | None = None, also: Sequence[str] = ()) -> None:
        """Every key that nobody asked for; `homes` says where a key would belong, `also` is as in Fields.done."""
        for key, value in fields.table.items():
            with self.gathered():
                if homes and key in homes and key not in fields.asked:
                    fields.fail(f"{key} belongs in {homes[key]}, not here", key)
                Fields(fields.document, fields.path, {key: value}, fields.asked).done(also)


@dataclass
class _Gathered(AbstractContextManager[bool | None]):
    problems: Problems

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, ConfigError):
            self.problems.add(Problem(error.message, error.label, error.line))
        elif isinstance(error, StrettoError):
            self.problems.add(Problem(str(error)))
        else:
            return False
        return True
