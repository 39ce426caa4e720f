"""Compiling graphs, or not: interpreted functions start at once, compiled ones are faster later.

With the backend "auto" a function is interpreted by NumPy until the time spent in it reaches the
time that compiling is expected to take, and is compiled then. The calls still to come are thereby
taken to be about as many as those seen. Whatever they turn out to be, the user waits at most twice
as long as with the better choice made from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pymc
import pytensor
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import io_toposort
from pytensor.link.jax import JAXLinker
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.elemwise import Elemwise

from pymc_ngvi._compat import inline_inner_graphs, interpreted_mode
from pymc_ngvi.errors import warn
from pymc_ngvi.model.garbage import collected_later

# Graphs of more operations than this take a backend minutes to compile. Second derivatives of
# regressions have 100 to 400.
_MANY_OPERATIONS = 1000

# Seconds that a backend takes to compile one operation, where this machine has not shown it yet:
# with empty caches Numba took 85 s for the 400 operations of a small regression.
_SECONDS_PER_OPERATION = 0.2
# PyTensor cannot compile in two threads at a time.
_COMPILING = threading.Lock()
# Weight of the last compilation in what is remembered of all.
_RECENT = 0.5


class SlowCompilationWarning(UserWarning):
    """A function is so large that compiling it may take minutes."""


class Compiler:
    """Compiles graphs of a model.

    Parameters
    ----------
    model : pymc.Model
    kwargs : mapping
        Passed on to ``pymc.Model.compile_fn``. Without a "mode" PyTensor's default compiles.
    interpreted : bool
        Whether the mode in `kwargs` is that of NumPy without any compilation.
    automatic : bool
        Interpret functions until compiling them pays.

    Attributes
    ----------
    compiled : int
        Functions compiled so far because that paid.
    seconds : float
        Time that these took.
    building : float
        Time spent on building functions, compiled or not.
    """

    def __init__(
        self,
        model: pymc.Model,
        kwargs: Mapping[str, Any],
        *,
        interpreted: bool = False,
        automatic: bool = False,
    ) -> None:
        self._model = model
        self._kwargs = dict(kwargs)
        self._interpreted = interpreted
        self._automatic = automatic
        self._announced = False
        self._linker = get_mode(self._kwargs.get("mode")).linker
        self.compiled = 0
        self.seconds = 0.0
        self.building = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # What is sent elsewhere compiles alike and holds no model: its graphs are sent by others.
        settings = self._kwargs, self._interpreted, self._automatic
        return _without_model, (self._model.check_bounds, *settings)

    @property
    def on_jax(self) -> bool:
        """Whether functions run on JAX, which compiles once for each shape of their inputs."""
        return isinstance(self._linker, JAXLinker) and not self._automatic

    @property
    def name(self) -> str:
        """What runs the functions, in a word or two."""
        backend = type(self._linker).__name__.removesuffix("Linker").lower()
        backend = {"vm": "c", "clinker": "c", "": "c"}.get(backend, backend)
        if self._interpreted or (self._automatic and not self.compiled):
            return "interpreted"
        if self._automatic:
            return f"interpreted, then {backend} (compiled in {self.seconds:.1f} s)"
        return backend

    @collected_later()
    def function(self, outputs: Sequence[Variable], inputs: Sequence[Variable]) -> Any:
        """Return a function that takes contiguous arrays of the right types."""
        operations = len(io_toposort([], list(outputs)))
        if not self._automatic:
            self._announce(operations)
            return self._compile(outputs, inputs, self._kwargs, interpreted=self._interpreted)
        kwargs = self._kwargs | {"mode": interpreted_mode()}
        function = self._compile(outputs, inputs, kwargs, interpreted=True)
        if operations > _MANY_OPERATIONS:
            return function
        return Adaptive(
            function,
            lambda: self._compile_now(outputs, inputs, operations),
            operations * _expected_seconds(self._memory),
        )

    def _compile(
        self,
        outputs: Sequence[Variable],
        inputs: Sequence[Variable],
        kwargs: Mapping[str, Any],
        *,
        interpreted: bool,
    ) -> Any:
        # PyTensor would keep with each node the stack traces of all the nodes that it replaced,
        # which took most of the time of compiling a Cholesky factor's Hessian.
        flags: dict[str, Any] = {"traceback__limit": 0, "traceback__compile_limit": 0}
        if interpreted:
            outputs = inline_inner_graphs(outputs)
            # Inner functions (of Scan, of logsumexp) would go to the C compiler all the same.
            flags["cxx"] = ""
        begin = time.perf_counter()
        with pytensor.config.change_flags(**flags):
            function = self._model.compile_fn(
                list(outputs),
                inputs=list(inputs),
                point_fn=False,
                on_unused_input="ignore",
                **kwargs,
            )
        self.building += time.perf_counter() - begin
        function.trust_input = True  # PyTensor need not check the inputs of each call
        return function

    def _compile_now(
        self, outputs: Sequence[Variable], inputs: Sequence[Variable], operations: int
    ) -> Any:
        """Compile a function that was interpreted so far, and remember how long that took."""
        if isinstance(self._linker, NumbaLinker):
            _check_numba(outputs)
        begin = time.perf_counter()
        function = self._compile(outputs, inputs, self._kwargs, interpreted=False)

        def first_call(*arguments: Any) -> Any:  # Numba and JAX compile when called
            called = time.perf_counter()
            values = function(*arguments)
            seconds = time.perf_counter() - begin
            self.compiled += 1
            self.seconds += seconds
            self.building += time.perf_counter() - called
            _remember(self._memory, seconds / operations)
            return values

        return first_call, function

    @property
    def _memory(self) -> Path:
        """Where the times of compilations are remembered: beside PyTensor's compiled modules."""
        name = f"pymc_ngvi_{type(self._linker).__name__.lower()}_seconds.json"
        return Path(pytensor.config.compiledir) / name

    def _announce(self, operations: int) -> None:
        """Say once that the backend the user has named may take minutes to compile."""
        if self._interpreted or self._announced or operations <= _MANY_OPERATIONS:
            return
        self._announced = True
        warn(
            f"the log density and its derivatives have {operations:,} operations: compiling them "
            'may take minutes; backend="auto" or "interpreted" starts sooner',
            SlowCompilationWarning,
        )


def _without_model(
    check_bounds: bool, kwargs: Mapping[str, Any], interpreted: bool, automatic: bool
) -> Compiler:
    """Make a compiler for graphs that come from another process."""
    model = pymc.Model(check_bounds=check_bounds)
    return Compiler(model, kwargs, interpreted=interpreted, automatic=automatic)


class Adaptive:
    """A function that is interpreted at first, and compiled when that has cost enough.

    Parameters
    ----------
    interpreted : callable
    compile : callable
        Returns the compiled function, and before it one for its first call.
    expected : float
        Time that compiling is expected to take, in seconds.
    """

    def __init__(
        self,
        interpreted: Any,
        compile: Callable[[], tuple[Callable[..., Any], Callable[..., Any]]],  # noqa: A002
        expected: float,
    ) -> None:
        self._call = self._interpret
        self._interpreted = interpreted
        self._compile = compile
        self._left = expected

    @property
    def maker(self) -> Any:
        """What PyTensor made the interpreted function from."""
        return self._interpreted.maker

    def __call__(self, *inputs: Any) -> Any:
        """Call whichever function it is now."""
        return self._call(*inputs)

    def _interpret(self, *inputs: Any) -> Any:
        begin = time.perf_counter()
        values = self._interpreted(*inputs)
        self._left -= time.perf_counter() - begin
        if self._left < 0:
            self._call = self._try_compiled
        return values

    def _try_compiled(self, *inputs: Any) -> Any:
        try:
            with _COMPILING:
                first, compiled = self._compile()
                values = first(*inputs)
        # A backend may raise anything for an operation that it does not know.
        except Exception:
            self._call = self._interpreted
            return self._interpreted(*inputs)
        self._call = compiled
        return values


def _expected_seconds(memory: Path) -> float:
    """Seconds that compiling takes for one operation, as remembered or by default."""
    try:
        return float(json.loads(memory.read_text())["seconds_per_operation"])
    except (OSError, ValueError, KeyError, TypeError):
        return _SECONDS_PER_OPERATION


def _remember(memory: Path, seconds: float) -> None:
    known = _expected_seconds(memory)
    mixed = (1 - _RECENT) * known + _RECENT * seconds
    with contextlib.suppress(OSError):  # a machine that cannot remember guesses again
        memory.write_text(json.dumps({"seconds_per_operation": mixed}))


def _check_numba(outputs: Sequence[Variable]) -> None:
    """Raise where Numba would run an operation element by element in Python, as `polygamma`.

    NumPy calls SciPy once for a whole array instead.
    """
    # Importing Numba takes a second, which only what is compiled should cost.
    from pytensor.link.numba.dispatch import numba_funcify
    from scipy.special import cython_special

    for node in io_toposort([], list(outputs)):
        operation = node.op.scalar_op if isinstance(node.op, Elemwise) else None
        if operation is None:
            continue
        own = numba_funcify.dispatch(type(operation)) is not numba_funcify.dispatch(ScalarOp)
        name = (operation.nfunc_spec or ("",))[0]
        if not own and name.startswith("scipy.special."):
            own = hasattr(cython_special, name.removeprefix("scipy.special."))
            if not own:
                raise NotImplementedError(f"Numba has no {name}")
