"""Modules that run as one, each compiled alone by a backend of ``torch.compile``."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from accucompare.bundle.format import Compiled, RegionFacts, display_name
from accucompare.errors import UsageError
from accucompare.live.modules import Modules, class_of
from accucompare.live.numerics.backends import (
    OWN,
    GraphCompiler,
    backend_in,
    backend_named,
    own_wrappers,
)
from accucompare.live.numerics.regions import ModuleTree
from accucompare.live.numerics.side_effects import BeforeCall, draws_of
from accucompare.live.operators import without_dispatch
from accucompare.selection import Selection
from accucompare.text import first_few

#: Called before a region is compiled, with its name, those done, and all.
Compiling = Callable[[str, int, int], None]

_told: list[Compiling] = []


@contextlib.contextmanager
def telling_compilation(tell: Compiling) -> Iterator[None]:
    """Call ``tell`` before each region is compiled, while the context lasts."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


@dataclass(eq=False)
class Probe:
    """What keeps the graphs of a region that is compiled, with what goes into them first."""

    graphs: list[ProbedGraph] = field(default_factory=list)

    def look_at(
        self, graph: torch.fx.GraphModule, inputs: Any, backend: GraphCompiler
    ) -> GraphCompiler:
        kept = ProbedGraph(copy.deepcopy(graph), backend)
        self.graphs.append(kept)
        run = backend(copy.deepcopy(graph), inputs)

        def running(*inputs: Any) -> Any:
            if kept.inputs is None:
                kept.inputs = [_copied(each) for each in inputs]
            return run(*inputs)

        return running


@dataclass(eq=False)
class ProbedGraph:
    """A graph as a backend was given it, and copies of its first inputs."""

    graph: torch.fx.GraphModule
    backend: GraphCompiler
    inputs: list[Any] | None = None


@contextlib.contextmanager
def probing() -> Iterator[Probe]:
    """Keep the graphs of regions that are compiled while the context lasts."""
    probe = Probe()
    _probes.append(probe)
    try:
        yield probe
    finally:
        _probes.remove(probe)


_probes: list[Probe] = []


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def compiled_alone(graph: torch.fx.GraphModule, backend: GraphCompiler) -> Callable[..., Any]:
    """A graph compiled as it is by a backend."""
    compiled = torch.compile(graph, backend=backend)

    def run(*inputs: Any) -> Any:
        with _disable_current_modes(), _without_limit(), _compiling_stance():
            return compiled(*inputs)

    return run


class DrawsError(Exception):
    """A region draws random numbers, which compiled code draws otherwise."""


class OverwritesError(Exception):
    """A region's compiled code has written into a weight, and no operator of the model does."""


@dataclass(eq=False)
class _Region:
    """A region while it is installed."""

    name: str
    module: nn.Module
    forward: Callable[..., Any]  # the module's own
    had_forward: bool
    own: Any = None  # how the model itself compiles it, or a module around it
    run: Callable[..., Any] | None = None  # compiled, when the region is first called
    code: CodeType | None = None
    eager: str = ""
    facts: RegionFacts = field(default_factory=RegionFacts)


class CompiledRegions:
    """The regions of a model: they run as one, compiled, or eagerly where no backend is asked.

    The module's ``forward`` is replaced while this is installed, so hooks stay outside of what is
    compiled. A region that cannot be compiled is split into its children, whose calls are then
    seen; one without children runs eagerly.
    """

    def __init__(self, modules: Modules, backend: str | None, asked: Iterable[str] = ()) -> None:
        """
        Args:
            backend: of ``torch.compile``, ``OWN``, or ``None``.
            asked: globs of names; by default the finest of ``ModuleTree.levels``.

        Raises:
            UsageError: if there is no such backend, or no such module.
        """
        self._modules = modules
        self._outline = ModuleTree(modules)
        self._name = backend
        self._backend = backend_named("inductor" if backend in (None, OWN) else str(backend))
        self._regions: dict[str, _Region] = {}
        self._wrappers = own_wrappers(modules)  # by the module's id
        self._eager: dict[str, str] = {}
        self._aside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self._see: Callable[[list[str]], None] = lambda names: None
        self._stack = contextlib.ExitStack()
        planned = self._chosen(tuple(asked))
        inside = self._outline.inside(planned)
        # what regions use and the model calls elsewhere, too: no region, and not seen anywhere
        shared = {
            first
            for alias, first in modules.aliases.items()
            if first not in inside and any(alias.startswith(f"{name}.") for name in planned)
        }
        self._planned = [name for name in planned if name not in shared]
        modules.hidden = inside | shared | self._outline.inside(shared)

    def _chosen(self, asked: tuple[str, ...]) -> list[str]:
        named = self._modules.named
        if asked:
            names = [name for name in named if Selection(asked).allows(name)]
            if not names:
                raise UsageError(
                    f"regions (--regions) {' '.join(asked)}: no layer of the model matches; its"
                    f" layers are {first_few([display_name(name) for name in named])}"
                )
        elif self._name == OWN:
            names = [name for name, module in named.items() if id(module) in self._wrappers]
            if not names:
                raise UsageError(
                    "compile own (--compile own): the model compiles none of its modules; name a"
                    " backend, such as --compile inductor"
                )
        else:
            names = list(self._outline.levels()[0])
        inside = self._outline.inside(names)
        return [name for name in names if name not in inside]

    def install(
        self,
        aside: Callable[[], contextlib.AbstractContextManager[None]],
        see: Callable[[list[str]], None],
    ) -> None:
        """From now on regions run as one.

        Args:
            aside: within this context runs what is no code of the model.
            see: called with modules whose calls are to be seen from now on.
        """
        self._aside, self._see = aside, see
        if self._name is not None:
            self._stack.enter_context(_without_limit())
        for name in self._planned:
            self._put_on(name)

    def remove(self) -> None:
        for region in self._regions.values():
            if not region.eager:
                self._take_off(region)
        self._stack.close()

    @property
    def names(self) -> tuple[str, ...]:
        """The regions as they were chosen, before any is split."""
        return tuple(self._planned)

    @property
    def run_all_own(self) -> bool:
        """Whether the modules that the model itself compiles run compiled, too."""
        named = self._modules.named
        own = {name for name, module in named.items() if id(module) in self._wrappers}
        seen = own - self._modules.hidden - {*self._regions}
        return self._name is not None and not seen and not own & {*self._eager}

    def facts(self) -> Compiled:
        regions = {name: each.facts for name, each in self._regions.items() if not each.eager}
        return Compiled(self._name, regions, self._eager)

    def _put_on(self, name: str) -> None:
        module = self._modules.named[name]
        region = _Region(name, module, module.forward, "forward" in vars(module))
        region.own = self._own_of(name) if self._name == OWN else None
        self._regions[name] = region
        if self._name is None:
            return

        @functools.wraps(region.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._run(region, args, kwargs)

        module.forward = forward

    def _own_of(self, name: str) -> Any:
        """How the model compiles a module, or the innermost one around it; ``None`` if unknown."""
        around = name
        while (found := self._wrappers.get(id(self._modules.named[around]))) is None and around:
            around = around.rpartition(".")[0]
        return found

    def _take_off(self, region: _Region) -> None:
        if region.had_forward:
            region.module.forward = region.forward
        else:
            vars(region.module).pop("forward", None)

    def _run(self, region: _Region, args: Any, kwargs: Any) -> Any:
        if region.eager:
            return region.forward(*args, **kwargs)
        first = region.run is None
        if region.run is None:
            done = sum(each.run is not None or bool(each.eager) for each in self._regions.values())
            for tell in _told:
                tell(display_name(region.name), done, len(self._regions))
            with self._aside():
                region.run = self._compiled(region, args, kwargs)
        failure: Exception | None = None
        before = BeforeCall(region.module, first, args, kwargs)
        with self._aside(), _disable_current_modes(), _Watched(region), _compiling_stance():
            try:
                result = without_dispatch(region.run, *args, **kwargs)
            except Exception as error:
                if not first:
                    raise
                failure = error
        if failure is None and before.has_drawn and not _probes:
            failure = DrawsError("it draws random numbers, which compiled code draws anew")
        if failure is None and (name := before.overwritten) is not None:
            failure = OverwritesError(f"its compiled code has written into {name}")
        if failure is not None:
            before.restore()
            self._split(region, failure)
            return region.forward(*args, **kwargs)  # raises, too, if the model itself is at fault
        if first and not _was_compiled(region):
            self._eager[region.name] = "torch.compile left it as it is" + "".join(
                f": {each}" for each in region.facts.breaks[:1]
            )
        return result

    def _compiled(self, region: _Region, args: Any, kwargs: Any) -> Callable[..., Any]:
        """The region's forward, compiled. Regions of one class and shape share their code."""
        inner = region.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        key = (class_of(region.module), *_shapes(region.module.state_dict(keep_vars=True)))
        key = (*key, *_shapes((args, kwargs)), *map(id, (self._backend, *_probes)))
        run.__code__ = region.code = _code_of(run.__code__, key)
        if region.own is None:
            return torch.compile(run, backend=_without_draws(self._backend))
        if _probes:
            return torch.compile(run, backend=_without_draws(backend_in(region.own)))
        compiled: Callable[..., Any] = region.own(run)
        return compiled

    def _split(self, region: _Region, error: Exception) -> None:
        """Run a region's own code eagerly from now on, and its children compiled."""
        self._take_off(region)
        region.eager = _reason(error)
        self._eager[region.name] = region.eager
        children = [
            name for name in self._outline.children(region.name) if name not in self._regions
        ]
        visible = self._outline.inside([region.name]) - self._outline.inside(children)
        self._modules.hidden -= visible
        for name in children:
            self._put_on(name)
        self._see([name for name in self._modules.named if name in visible])


class _Watched:
    """Keeps what compiling does while a region runs."""

    def __init__(self, region: _Region) -> None:
        self._region = region

    def __enter__(self) -> None:
        _running.append(self._region)
        self._breaks = _graph_breaks()
        self._last = _last_metrics()

    def __exit__(self, *error: object) -> None:
        _running.remove(self._region)
        found = _metrics_after(self._last)
        if not found:
            return
        _compiled_codes.add(self._region.code)
        region, facts = self._region, self._region.facts
        reasons = [getattr(each, "recompile_reason", None) for each in found]  # from torch 2.7 on
        why = [_condition(each) for each in reasons if each]
        broke = _graph_breaks() - self._breaks
        region.facts = RegionFacts(
            facts.graphs + sum(bool(each.graph_op_count and not each.fail_type) for each in found),
            tuple(dict.fromkeys([*facts.breaks, *map(_one_line, broke)])),
            (*facts.recompiled, *why),
            facts.guards + sum(each.guard_count or 0 for each in found),
            facts.seconds + sum(each.entire_frame_compile_time_s or 0.0 for each in found),
        )


#: The regions that run now, the innermost last.
_running: list[_Region] = []


@functools.cache  # compiled code is kept by its backend
def _without_draws(compile_graph: GraphCompiler) -> GraphCompiler:
    """A backend that refuses graphs that draw random numbers."""

    def backend(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        if _running and _probes:
            return _probes[-1].look_at(graph, inputs, compile_graph)
        if _running and (drawn := next(draws_of(graph), None)):
            raise DrawsError(f"it draws random numbers ({drawn}), which compiled code draws anew")
        return compile_graph(graph, inputs, **options)

    return backend


_codes: dict[Any, CodeType] = {}
_compiled_codes: set[CodeType | None] = set()


def _was_compiled(region: _Region) -> bool:
    """Whether anything of it was compiled, or there was nothing to compile."""
    return region.code in _compiled_codes and bool(region.facts.graphs or not region.facts.breaks)


def _code_of(code: CodeType, key: Any) -> CodeType:
    """A copy of a code object for each key: the compiler keeps what it compiled by code object."""
    if key not in _codes:
        _codes[key] = code.replace(co_name=f"region_{len(_codes)}")
    return _codes[key]


def _shapes(values: Any) -> list[Any]:
    leaves = pytree.tree_leaves(values)
    return [
        (tuple(each.shape), each.dtype, each.device.type, each.requires_grad)
        for each in leaves
        if isinstance(each, torch.Tensor)
    ]


def _compiling_stance() -> contextlib.AbstractContextManager[Any]:
    """Compiled code runs compiled, whatever is in force outside."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # from torch 2.6 on
    if set_stance is None:
        return torch._dynamo.config.patch(disable=False)  # type: ignore[no-any-return]
    stance: contextlib.AbstractContextManager[Any] = set_stance("default")
    return stance


@contextlib.contextmanager
def _without_limit() -> Iterator[None]:
    """Compile as often as shapes ask for it: past its limit, torch.compile runs eagerly."""
    from torch._dynamo import config

    names = ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit")
    known = [name for name in names if hasattr(config, name)][:2]
    with config.patch(dict.fromkeys(known, 1 << 20)):
        yield


def _graph_breaks() -> Counter[str]:
    """How often a graph has broken, by reason."""
    from torch._dynamo.utils import counters

    return Counter(counters["graph_break"])


def _last_metrics() -> Any:
    from torch._dynamo.utils import get_compilation_metrics

    found = get_compilation_metrics()
    return found[-1] if found else None


def _metrics_after(last: Any) -> list[Any]:
    """What was compiled after ``last``, of the few that torch keeps."""
    from torch._dynamo.utils import get_compilation_metrics

    found = get_compilation_metrics()
    place = next((number for number, each in enumerate(found) if each is last), -1)
    return found[place + 1 :]


def _reason(error: Exception) -> str:
    inner = getattr(error, "inner_exception", None) or error
    text = _one_line(str(inner)) or type(inner).__name__
    if isinstance(inner, (DrawsError, OverwritesError)):
        return text
    return f"{type(inner).__name__}: {text}"


def _condition(reason: str) -> str:
    """A guard that did not hold, without its number and the line of code beside it."""
    return _one_line(re.sub(r"^\d+/\d+: |\s+#.*", "", reason.strip()))


def _one_line(text: str) -> str:
    """The first line of a message of the compiler, without what it says to its developers."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:200] if lines else ""
