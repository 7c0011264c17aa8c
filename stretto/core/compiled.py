"""The decorator for compiled functions.

Numba compiles a function that another one calls as if Python could call it as well: with a wrapper, optimised together
with all that it calls, as machine code of its own and in the cache. In a house of many small functions nearly all of
that work is thrown away, once for each level of calls. Here a function called by compiled code is only typed and
lowered, once, whatever constants it is called with. What Python calls is linked with all of those, optimised as a whole
and cached.

STRETTO_PURE=1 leaves all of it as plain Python (`pure`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from llvmlite.binding import create_new_module_pass_manager
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.event import trigger_event
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.core.types.misc import unliteral
from numba.cpython.unsafe import numbers

from stretto.core import pure
from stretto.core.compile_cache import CompiledCache

Function = TypeVar("Function", bound=Callable[..., Any])

# Of a word of 64 bits.
leading_zeros: Any = pure.leading_zeros if pure.PURE else numbers.leading_zeros
trailing_zeros: Any = pure.trailing_zeros if pure.PURE else numbers.trailing_zeros

# Release the GIL, and divide by zero as C does. Nobody takes the address of a compiled function.
WHOLE_OPTIONS = {"nopython": True, "nogil": True, "boundscheck": None, "error_model": "numpy", "no_cfunc_wrapper": True}
PART_OPTIONS = {**WHOLE_OPTIONS, "no_cpython_wrapper": True}


class PartLibrary(JITCodeLibrary):  # type: ignore[misc]
    """One function as it was lowered: not optimised, and without those that it calls."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._finalized = True


class WholeLibrary(JITCodeLibrary):  # type: ignore[misc]
    """A function with all that it calls, directly or not."""

    def add_linking_library(self, library: Any) -> None:
        if library not in self._linking_libraries:
            super().add_linking_library(library)
            if isinstance(library, PartLibrary):
                for called in library._linking_libraries:
                    self.add_linking_library(called)

    def _optimize_final_module(self) -> None:
        """Nobody outside calls a part, so that one with a single caller can become a part of that caller.

        Every part returns a status, which its callers check. Only once all parts are simplified is it plain that most
        cannot fail; then their statuses and what nobody reads are taken out, and the rest is simplified once more.
        """
        self._keep_parts_inside()
        super()._optimize_final_module()
        passes, builder = create_new_module_pass_manager(), self._codegen._pass_builder()
        passes.add_ipsccp_pass()
        passes.add_dead_arg_elimination_pass()
        passes.add_argument_promotion_pass()
        passes.run(self._final_module, builder)
        super()._optimize_final_module()

    def _keep_parts_inside(self) -> None:
        for library in self._linking_libraries:
            if isinstance(library, PartLibrary):
                for function in library._final_module.functions:
                    if not function.is_declaration:
                        self._final_module.get_function(function.name).linkage = "internal"


class SeldomLibrary(WholeLibrary):
    """Of a function that is called some times a second: simplified once."""

    def _optimize_final_module(self) -> None:
        self._keep_parts_inside()
        JITCodeLibrary._optimize_final_module(self)


class PartCompiler(Compiler):  # type: ignore[misc]
    """Stops before machine code."""

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Any, locals: Any
    ) -> None:
        flags.no_compile = True
        library = PartLibrary(targetctx.codegen(), "part")
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)


class WholeCompiler(Compiler):  # type: ignore[misc]
    """Numba's own, but for what is linked."""

    library_class: type[WholeLibrary] = WholeLibrary

    def __init__(
        self, typingctx: Any, targetctx: Any, library: Any, args: Any, return_type: Any, flags: Any, locals: Any
    ) -> None:
        library = self.library_class(targetctx.codegen(), "whole")
        library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)


class SeldomCompiler(WholeCompiler):
    """The same, in less time."""

    library_class = SeldomLibrary


class Part(CPUDispatcher):  # type: ignore[misc]
    """A function as compiled code calls it. Python cannot."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, {}, PART_OPTIONS, PartCompiler)

    def compile(self, sig: Any) -> Any:
        """As Numba does, without the cache, and without two timers of every call into LLVM per level of calls."""
        args, return_type = normalize_signature(sig)
        if tuple(args) not in self.overloads:
            about = {"dispatcher": self, "args": args, "return_type": return_type}
            with self._compiling_counter, trigger_event("numba:compile", data=about):
                self.add_overload(self._compiler.compile(args, return_type))
        return self.overloads[tuple(args)].entry_point

    def add_overload(self, cres: Any) -> None:
        cres = cres._replace(entry_point=object())  # only its identity is used, to find the function when it is called
        self.targetctx.insert_user_function(cres.entry_point, cres.fndesc, [cres.library])
        self.overloads[tuple(cres.signature.args)] = cres

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """A constant is an argument like any other; else each would make its own version of the function."""
        return super().get_call_template([unliteral(argument) for argument in args], kws)


class CompiledFunction(CPUDispatcher):  # type: ignore[misc]
    """What `compiled` makes: Python calls this, compiled code calls its part."""

    _cache: Any

    def __init__(
        self, function: Callable[..., Any], compiler: type[WholeCompiler] = WholeCompiler, **options: Any
    ) -> None:
        super().__init__(function, {}, WHOLE_OPTIONS | options, compiler)
        self.part = Part(function)

    def compile(self, sig: Any) -> Any:
        if isinstance(self._cache, NullCache):  # only now: most functions are never called from Python
            self._cache = CompiledCache(self.py_func)
        return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        super().add_overload(cres)
        if isinstance(cres.library, WholeLibrary):  # just compiled; one from the cache comes with its environments
            for environment in cres._find_referenced_environments():
                cres.library.codegen.set_env(environment.env_name, environment)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return self.part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        return self.part.get_overload(sig)


def compiled(function: Function) -> Function:
    """Compile on first use: for Python with a cache on disk, for other compiled functions as a part of them."""
    return _made(function)


def compiled_seldom(function: Function) -> Function:
    """As `compiled`, where Python calls it for a plan or a look and not for a query: less is spent on its speed."""
    return _made(function, SeldomCompiler)


def compiled_sum(function: Function) -> Function:
    """As `compiled`, where numbers may be added in any order: several at a time then."""
    return _made(function, fastmath={"reassoc"})


def _made(function: Function, compiler: type[WholeCompiler] = WholeCompiler, **options: Any) -> Function:
    made = pure.in_python(function) if pure.PURE else CompiledFunction(function, compiler, **options)
    return cast(Function, made)
