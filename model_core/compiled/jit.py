"""Compilation by numba: its options, and a cache on disk that a change of `SOURCES` empties.

numba takes half a second to import: only modules that are imported on demand import this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import (
    caching,
    cgutils,
    codegen,
    compiler,
    compiler_machinery,
    controlflow,
    event,
    lowering,
    typed_passes,
)
from numba.np import arrayobj
from numpy.typing import NDArray

from model_core import table
from model_core.table import LANES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# numpy's errors: a check of each division for zero would keep loops from being vectorised. No
# fastmath: what is not finite has to be seen, and sums have one order on every machine. Without
# numba's runtime (nrt) nothing is allocated, and references to arrays are not counted, which costs
# as much as short loops over them. Only what Python calls has a wrapper for it, which takes as long
# to compile as a short function.
_CALLED_OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False}
_ENTRY_OPTIONS = {**_CALLED_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
# Files and folders of model_core whose code and constants kernels hold.
SOURCES = (
    "anomaly.py", "belief.py", "compiled", "components", "hazard.py", "labels.py", "maths",
    "quantiles.py", "regimes.py", "table.py", "upm",
)  # fmt: skip
# Modules that share nothing with other kernels, and what each is compiled from: a change of that
# empties no cache but its own.
ALONE = {
    "beside": ("anomaly.py", "correction.py", "compiled/ranks.py"),
    "checksums": (),
    "explaining": ("explanation.py",),
    "periods": ("periodicity.py",),
    "plain": ("labels.py",),
}
CALLERS = ("kernel", "__main__")  # of kernels, beside them: no part of any
logger = logging.getLogger(__name__)
_compiling = threading.Lock()
intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
REAL = numba.types.float64


class _Part(codegen.JITCodeLibrary):  # type: ignore[misc]
    """Code of a function that only compiled functions call, with the code of those that it calls.

    It is optimised, and becomes machine code, in the `entry` or `called` function that contains it.
    numba would do both for each function on the way there as well, which takes a third longer.
    """

    @property
    def codegen(self) -> _Part:
        """Itself: numba asks it for nothing but `set_env` once it is complete."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing: there is no machine code that would read its environment."""

    def finalize(self) -> None:
        """Add the code of the functions that it calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


class _Distinct(ir.MDValue):  # type: ignore[misc]
    """Metadata that is like no other; that of a loop names itself first."""

    def __init__(self, module: Any, *more: Any) -> None:
        super().__init__(module, (self, *more) if more else (), str(len(module.metadata)))

    def descr(self, buffer: list[str]) -> None:
        """Write it."""
        buffer.append("distinct ")
        super().descr(buffer)

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class _Lower(lowering.Lower):  # type: ignore[misc]
    """Tells LLVM of functions in `LINEWISE` that turns of a loop may run at once.

    It would compare the ends of all lines before each loop, which takes as long as a short one.
    """

    def post_lower(self) -> None:
        """The function is there, but for the way from its first block to the next."""
        super().post_lower()
        if self.func_ir.func_id.func not in LINEWISE:
            return
        _, *blocks = self.function.blocks
        graph = controlflow.CFGraph()
        for at in range(len(blocks)):
            graph.add_node(at)
        for at, block in enumerate(blocks):
            for target in block.terminator.operands:
                if target in blocks:
                    graph.add_edge(at, blocks.index(target))
        graph.set_entry_point(0)
        graph.process()
        loops = graph.loops()
        for header, loop in loops.items():
            if len(loop.body & loops.keys()) == 1:  # the innermost
                self._mark([blocks[at] for at in loop.body], blocks[header])

    def _mark(self, body: list[Any], header: Any) -> None:
        group = _Distinct(self.module)
        says = [self.module.add_metadata(["llvm.loop.parallel_accesses", group])]
        if not self.flags.fastmath:  # which decides the order of sums that are regrouped
            one = ir.Constant(cgutils.int32_t, 1)
            says.append(self.module.add_metadata(["llvm.loop.interleave.count", one]))
        for block in body:
            if header in block.terminator.operands:
                block.terminator.set_metadata("llvm.loop", _Distinct(self.module, *says))
            for step in block.instructions:
                if step.opname not in ("load", "store"):
                    continue
                if not isinstance(step.operands[-1], ir.AllocaInstr):  # no variable
                    step.set_metadata("llvm.access.group", group)


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(typed_passes.NativeLowering):  # type: ignore[misc]
    _name = "lowering_of_parts"
    lowering_class = _Lower


class _PartCompiler(compiler.Compiler):  # type: ignore[misc]
    """Compiles functions to parts."""

    def define_pipelines(self) -> Any:
        """As those of any function, but for the lowering."""
        name = self.state.func_id.func_qualname
        self.state.library = _Part(self.state.targetctx.codegen(), name)
        (passes,) = super().define_pipelines()
        usual = typed_passes.NativeLowering
        passes.passes = [(_Lowering if own is usual else own, why) for own, why in passes.passes]
        passes.finalize()
        return [passes]


OPTIONS = {"pipeline_class": _PartCompiler, **_ENTRY_OPTIONS}
INLINED = {"forceinline": True, **OPTIONS}
LINEWISE: set[Callable[..., Any]] = set()  # functions of `linewise`
# What `of_class` calls, by class of named tuples and name.
FUNCTIONS: dict[type[Any], dict[str, Callable[..., Any]]] = {}


def called(function: F) -> F:
    """Compile at the first call by Python, or load from the cache."""
    return _cached(numba.njit(**_CALLED_OPTIONS)(function))  # type: ignore[no-any-return]


def allocating(function: F) -> F:
    """As `called`, of functions that make arrays."""
    return _cached(numba.njit(error_model="numpy", nogil=True)(function))  # type: ignore[no-any-return]


def entry(function: F) -> F:
    """Compile, or load from the cache, for calls by `address`: Python may not call it."""
    return _cached(numba.njit(**_ENTRY_OPTIONS)(function))  # type: ignore[no-any-return]


def compiled(function: F) -> F:
    """Compile with each `called` or `entry` function that calls it: Python may not."""
    return _of_numbers(numba.njit(**OPTIONS)(function))  # type: ignore[no-any-return]


def linewise(function: F) -> F:
    """As `compiled`, with innermost loops of which no turn reads or writes what another one writes.

    As along lines: two of them are one, or have nothing in common.
    """
    LINEWISE.add(function)
    return compiled(function)


def regrouped(function: F) -> F:
    """As `linewise`, with sums in any order: loops that sum several things become vectors.

    The functions they call keep their order. For what no state holds: summaries alone.
    """
    LINEWISE.add(function)
    return _of_numbers(numba.njit(fastmath={"reassoc"}, **OPTIONS)(function))  # type: ignore[no-any-return]


def _cached(dispatcher: Any) -> Any:
    cache = _cache(dispatcher.py_func)
    if cache is not None:
        dispatcher._cache = cache
    return _of_numbers(dispatcher)


def inlined(function: F) -> F:
    """Compile into every caller: loops over such functions can be vectorised."""
    return _of_numbers(numba.njit(**INLINED)(function))  # type: ignore[no-any-return]


def _of_numbers(dispatcher: Any) -> Any:
    """Have arguments that are literal numbers compiled as numbers.

    numba would compile the function once more for a 0 that is passed to it, and with all it calls
    for the 0 that a variable is before the loop that counts in it.
    """
    resolved = dispatcher.get_call_template

    def of_numbers(args: Sequence[Any], kws: dict[str, Any]) -> Any:
        plain = [numba.types.unliteral(kind) for kind in args]
        return resolved(plain, {name: numba.types.unliteral(kws[name]) for name in kws})

    dispatcher.get_call_template = of_numbers
    return dispatcher


def of_class(which: Any, name: str, *arguments: Any) -> Any:
    """Call the function of that name that the class of a named tuple has in `FUNCTIONS`.

    numba's cache tells functions from one another by what they are closures over. It cannot look
    into compiled ones, but into a tuple, which stands for them.
    """
    raise NotImplementedError  # compiled as `_of_class_by` says


@extending.overload(of_class, jit_options=INLINED, strict=False, prefer_literal=True)  # type: ignore[untyped-decorator]
def _of_class_by(which: Any, name: Any, *arguments: Any) -> Any:
    function = FUNCTIONS[which.instance_class][name.literal_value]
    return lambda which, name, *arguments: function(*arguments)


def either(function: F) -> F:
    """Compile into callers that are compiled, and leave others the Python function."""
    return extending.register_jitable(**OPTIONS)(function)  # type: ignore[no-any-return]


def address(function: Callable[..., Any], types: tuple[Any, ...]) -> int:
    """Where an `entry` function of these types lies, for `call`; compiles it if need be.

    Raises TypeError for a `compiled` one, which lies nowhere.
    """
    function.compile(types)  # type: ignore[attr-defined]
    result = function.overloads[types]  # type: ignore[attr-defined]
    if isinstance(result.library, _Part):
        raise TypeError(f"{function.__name__}: expected an `entry` function, got a `compiled` one")
    name = result.fndesc.llvm_func_name
    return int(result.library.get_pointer_to_function(name))


def entry_point(function: Callable[..., Any], types: tuple[Any, ...]) -> Callable[..., None]:
    """A `called` function of arguments of these types, which are not checked."""
    function.compile(types)  # type: ignore[attr-defined]
    entry: Callable[..., None] = function.overloads[types].entry_point  # type: ignore[attr-defined]
    return entry


def locked(name: str, function: Callable[[], T]) -> T:
    """Call a function that may compile the kernel of that name, which it then says, once.

    Said in the log, or on standard error where the program has none. numba compiles for one thread
    at a time.
    """
    with _compiling, event.install_listener("numba:compile", _Announcement(name)):
        return function()


class _Announcement(event.Listener):  # type: ignore[misc]
    """Says that a kernel is compiled, at the first of its functions that no cache has."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = False

    def on_start(self, event: Any) -> None:
        """A function is about to be compiled, perhaps one of another package in another thread."""
        ours = event.data["dispatcher"].py_func.__module__.startswith("model_core.")
        if self._made or not ours:
            return
        self._made = True
        text = (
            f"compiling the kernel of {self._name}, once, for up to a minute; "
            "python -m model_core.compiled compiles all of them"
        )
        if logger.hasHandlers():
            logger.info(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        """Nothing follows."""


@lru_cache
def _digest(alone: str) -> str:
    """Of all files whose code and constants a kernel holds; alone: its module, if of `ALONE`."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    names = (*ALONE[alone], f"compiled/{alone}.py", "compiled/jit.py") if alone else SOURCES
    paths = {path for name in names for path in (root / name, *(root / name).rglob("*.py"))}
    if not alone:
        paths -= {root / f"compiled/{name}.py" for name in (*ALONE, *CALLERS)}
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _cache(function: Callable[..., Any]) -> Any:
    """Cache beside the sources, in NUMBA_CACHE_DIR or in the user's; None if none is writable."""
    try:
        return _Cache(function)
    except (AttributeError, RuntimeError):  # another version of numba, or nowhere to write
        return None


class _InTree(caching.InTreeCacheLocator):  # type: ignore[misc]
    """`__pycache__` beside the source; of an image that is read-only if it was filled before."""

    def ensure_cache_path(self) -> None:
        """Raise OSError for a folder that can neither be written to nor has kernels in it."""
        if not any(Path(self.get_cache_path()).glob("*.nbi")):
            super().ensure_cache_path()


class _Implementation(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """What is stored, and where."""

    _locator_classes = [
        caching.UserProvidedCacheLocator, _InTree, caching.UserWideCacheLocator
    ]  # fmt: skip


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """Compiled functions, valid for these very sources."""

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # Compared before the rest of an index is unpickled: that of other sources may name a
        # module that is gone.
        module = function.__module__.removeprefix(f"{__package__}.")
        self._cache_file._version += _digest(module if module in ALONE else "")
        self._cache_file._source_stamp = ""  # instead of the function's file alone

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep what was compiled, where that can be written."""
        with contextlib.suppress(OSError):
            self._impl.locator.ensure_cache_path()
            # Two processes that add to an index at once would give two kernels one name.
            with Path(self.cache_path, "kernels.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                super().save_overload(signature, data)


@intrinsic
def bits_of(context: Any, x: Any) -> Any:
    """The bits of a float as an integer."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return numba.types.int64(REAL), generate


@intrinsic
def float_of(context: Any, bits: Any) -> Any:
    """The float that these bits are."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return REAL(numba.types.int64), generate


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """`a b + c` with one rounding."""

    def generate(_: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return REAL(REAL, REAL, REAL), generate


@intrinsic
def fetch(context: Any, numbers: Any, at: Any) -> Any:
    """Have the processor get what lies around a number of an array, counted from its first one.

    Nothing waits for it, and no place is out of bounds.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = arrayobj.make_array(signature.args[0])(target, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), cgutils.voidptr_t)
        kinds = [cgutils.voidptr_t, *[cgutils.int32_t] * 3]
        kind = ir.FunctionType(ir.VoidType(), kinds)
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, second_cache, data = map(cgutils.int32_t, (0, 2, 1))
        builder.call(function, [place, read, second_cache, data])
        return target.get_dummy_value()

    return numba.types.void(numbers, at), generate


@intrinsic
def widest(context: Any) -> Any:
    """Have loops of the function that calls it use the widest vectors of the processor.

    LLVM takes those of 256 bits where there are wider ones, which pay only in long loops.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # llvmlite has no name for attributes with values.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return target.get_dummy_value()

    return numba.types.void(), generate


def slot_pointer(target: Any, builder: Any, kind: Any, rows: Any, line: Any, slot: Any) -> Any:
    """Where the number of a line in one slot lies; for intrinsics."""
    array = arrayobj.make_array(kind)(target, builder, rows)
    width = cgutils.unpack_tuple(builder, array.shape)[1]
    return builder.gep(array.data, [builder.add(builder.mul(line, width), slot)])


@intrinsic
def every(context: Any, like: Any, first: Any, step: Any) -> Any:
    """Lines from the first on, so far apart: as many as there are parameters in `like`."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, line, apart = arguments
        lines = []
        for _ in signature.args[0].types:
            lines.append(line)
            line = builder.add(line, apart)
        return target.make_tuple(builder, signature.return_type, lines)

    kind = numba.types.UniTuple(numba.types.int64, len(like.types))
    return kind(like, first, step), generate


@intrinsic
def state_at(context: Any, rows: Any, places: Any, slot: Any) -> Any:
    """The numbers at these lines in one slot, as a tuple."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, lines, place = arguments
        values = [
            builder.load(slot_pointer(target, builder, signature.args[0], array, line, place))
            for line in cgutils.unpack_tuple(builder, lines)
        ]
        return target.make_tuple(builder, signature.return_type, values)

    kind = numba.types.UniTuple(numba.types.float64, len(places.types))
    return kind(rows, places, slot), generate


@intrinsic
def state(context: Any, rows: Any, places: Any, slot: Any, numbers: Any) -> Any:
    """Write numbers at these lines into one slot."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, lines, place, values = arguments
        pairs = zip(
            cgutils.unpack_tuple(builder, lines), cgutils.unpack_tuple(builder, values), strict=True
        )
        for line, value in pairs:
            pointer = slot_pointer(target, builder, signature.args[0], array, line, place)
            builder.store(value, pointer)
        return target.get_dummy_value()

    return numba.types.void(rows, places, slot, numbers), generate


@intrinsic
def call(context: Any, address: Any, *arguments: Any) -> Any:
    """Call the `entry` function of these arguments' types, of a float, at an address.

    One driver calls those of every model without being compiled for each. What the function raises,
    as it may where indices are checked (NUMBA_BOUNDSCHECK), the caller raises.
    """

    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args[1].types
        convention = target.call_conv
        pointer = convention.get_function_type(REAL, kinds).as_pointer()
        function = builder.inttoptr(values[0], pointer)
        parts = cgutils.unpack_tuple(builder, values[1])
        status, result = convention.call_function(builder, function, REAL, kinds, parts)
        with builder.if_then(status.is_error, likely=False):
            convention.return_status_propagate(builder, status)
        return result

    return REAL(address, numba.types.StarArgTuple(arguments)), generate


@inlined
def whole(row: Floats) -> int:
    """How many numbers a padded row has.

    By the mask the compiler knows that loops over it consist of whole vectors: what is left over
    would take as long as several of them.
    """
    size: int = row.shape[0] & -LANES
    return size


padded = either(table.padded)
statistics_line = either(table.statistics_line)
totals_place = either(table.totals_place)
context_place = either(table.context_place)
