"""Which operator of a compiled graph is computed wrongly: the graph run again, in parts.

Each value is computed three times: compiled, eagerly, and in float64, which tells how far the other
two are off.
"""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from accucompare.live.numerics.compiled_regions import ProbedGraph, compiled_alone

#: The most operators of a graph that are tried one after the other.
_MOST = 48


@dataclass(frozen=True)
class OperatorTrial:
    """One operator's value, or what its backward gives, three times."""

    name: str  # of the node in the graph
    operator: str  # what it calls: ``torch.nn.functional.gelu``
    line: str  # the user's source line: ``modeling.py:12``; ``""`` if unknown
    # elements, dtype: of the value
    elements: int
    dtype: str
    # compiled, eager: relative L2 errors against float64
    compiled: float
    eager: float
    backward: bool = False  # whether it is a gradient
    alone: bool = False  # whether the operator was compiled alone, or with all before it


def try_values(probed: ProbedGraph) -> list[OperatorTrial]:
    """Every operator's value in one compiled graph that gives them all."""
    nodes = _computed(probed.graph)
    return _compared(probed, nodes)


def try_prefixes(probed: ProbedGraph) -> Iterator[OperatorTrial]:
    """Operator after operator, the graph up to it compiled: nothing after it changes its kernel."""
    nodes = _computed(probed.graph)
    for node in nodes[-_MOST:]:
        yield from _compared(probed, [node])


def try_backwards(probed: ProbedGraph) -> Iterator[OperatorTrial]:
    """Each operator compiled alone: what its backward gives to its arguments."""
    interpreter = _Values(probed.graph)
    interpreter.run(*_fresh(probed))
    values = interpreter.made
    nodes = [node for node in _computed(probed.graph) if _follows(values.get(node.name))]
    for node in nodes[:_MOST]:
        found = _backward_of(node, probed, values)
        if found is not None:
            yield found


def generated_code(probed: ProbedGraph) -> str:
    """What inductor makes of a graph; ``""`` if the backend is not made of it."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    found: list[str] = []
    with (
        contextlib.suppress(Exception),
        warnings.catch_warnings(),
        mock.patch.object(GraphLowering, "save_output_code", found.append),
        config.patch(force_disable_caches=True),
    ):
        warnings.simplefilter("ignore")
        compiled_alone(probed.graph, probed.backend)(*_fresh(probed))
    return "\n\n".join(found)


def kernel_of(code: str, trial: OperatorTrial) -> str:
    """The fused kernel of generated code that an operator is in; ``""`` if no name tells.

    Inductor names a kernel after the operators that it fused: ``cpp_fused_gelu_mul_0``.
    """
    short = trial.operator.rpartition(".")[2].strip("_")
    kernels = dict.fromkeys(re.findall(r"\b((?:cpp|triton)_\w*fused\w*)", code))
    return next((each for each in kernels if f"_{short}_" in each), "")


def _computed(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes that compute a real tensor."""
    return [
        node
        for node in graph.graph.nodes
        if node.op in ("call_function", "call_method", "call_module")
        and isinstance(value := node.meta.get("example_value"), torch.Tensor)
        and not value.is_complex()
    ]


def _compared(probed: ProbedGraph, nodes: Sequence[torch.fx.Node]) -> list[OperatorTrial]:
    if not nodes:
        return []
    part = _giving(probed.graph, [node.name for node in nodes])
    eager = part(*_fresh(probed))
    exact = _exactly(part, probed)
    with torch.no_grad() if not _trains(probed) else contextlib.nullcontext():
        compiled = compiled_alone(part, probed.backend)(*_fresh(probed))
    return [
        _trial(node, theirs, ours, true)
        for node, theirs, ours, true in zip(nodes, compiled, eager, exact, strict=True)
    ]


def _trial(
    node: torch.fx.Node, compiled: Any, eager: Any, exact: Any, **how: bool
) -> OperatorTrial:
    return OperatorTrial(
        node.name,
        _operator(node),
        _line(node),
        eager.numel(),
        str(eager.dtype).removeprefix("torch."),
        _error(compiled, exact),
        _error(eager, exact),
        **how,
    )


def _giving(graph: torch.fx.GraphModule, names: Sequence[str]) -> torch.fx.GraphModule:
    """A graph that gives copies of these values, each as it is when it is made."""
    part = copy.deepcopy(graph)
    given, wanted = [], set(names)
    for node in list(part.graph.nodes):
        if node.name in wanted:
            wanted.discard(node.name)
            with part.graph.inserting_after(node):
                given.append(part.graph.call_function(torch.clone, (node,)))
        if node.op == "output":
            node.args = (tuple(given),)
        elif not wanted and not names:
            break
    _cut_behind(part, given[-1])
    part.recompile()
    return part


def _cut_behind(part: torch.fx.GraphModule, last: torch.fx.Node) -> None:
    """Remove what comes after the last value that is given."""
    behind = []
    for node in reversed(list(part.graph.nodes)):
        if node is last:
            break
        if node.op not in ("output", "placeholder"):
            behind.append(node)
    for node in behind:
        if not node.users:
            part.graph.erase_node(node)


def _fresh(probed: ProbedGraph, dtype: torch.dtype | None = None) -> list[Any]:
    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        new = value.detach().clone()
        if dtype is not None and new.is_floating_point():
            new = new.to(dtype)
        # no leaf: the graph may write into it
        return new.requires_grad_().clone() if value.requires_grad else new

    return [copied(each) for each in probed.inputs or ()]


def _trains(probed: ProbedGraph) -> bool:
    return any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in probed.inputs or ()
    )


def _exactly(part: torch.fx.GraphModule, probed: ProbedGraph) -> Any:
    """What a part gives in float64; as it is, if it does not run in that."""
    try:
        with torch.no_grad():
            return part(*_fresh(probed, torch.float64))
    except RuntimeError:  # it casts its values itself
        with torch.no_grad():
            return part(*_fresh(probed))


def _error(value: Any, exact: Any) -> float:
    """The relative L2 error, in float64; infinite if only one of the two is finite somewhere."""
    ours, theirs = (each.detach().cpu().double() for each in (value, exact))
    if ours.shape != theirs.shape or not torch.equal(ours.isfinite(), theirs.isfinite()):
        return float("inf")
    finite = theirs.isfinite()
    apart = torch.linalg.vector_norm(torch.where(finite, ours - theirs, 0.0))
    size = torch.linalg.vector_norm(torch.where(finite, theirs, 0.0))
    return float(apart / size) if size else float("inf") if apart else 0.0


class _Values(torch.fx.Interpreter):
    """Keeps what each node makes, as it is then."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.made: dict[str, Any] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        self.made[n.name] = result
        return result


def _follows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _backward_of(
    node: torch.fx.Node, probed: ProbedGraph, values: dict[str, Any]
) -> OperatorTrial | None:
    """What the backward of one operator gives, for a gradient drawn at random."""
    used = [each for each in node.all_input_nodes if each.name in values]
    arguments = [values[each.name] for each in used]
    if not any(_follows(each) for each in arguments):
        return None
    alone = torch.fx.Graph()
    places = {each: alone.placeholder(each.name) for each in used}
    for each in node.all_input_nodes:
        if each not in places:
            return None
    alone.output((alone.node_copy(node, lambda each: places[each]),))
    part = torch.fx.GraphModule(probed.graph, alone)
    generator = torch.Generator().manual_seed(0)
    value = values[node.name]
    arriving = torch.randn(value.shape, generator=generator).to(value)

    def gradients(run: Callable[..., Any], dtype: torch.dtype | None) -> list[torch.Tensor]:
        given = [
            each.detach().clone().to(dtype if dtype and each.is_floating_point() else each.dtype)
            if isinstance(each, torch.Tensor)
            else each
            for each in arguments
        ]
        leaves = []
        for number, each in enumerate(arguments):
            if _follows(each):
                leaves.append(given[number].requires_grad_())
        with torch.enable_grad():
            # an operator may write into its argument, which no leaf allows
            (made,) = run(*[each.clone() if _follows(each) else each for each in given])
            found = torch.autograd.grad(made, leaves, arriving.to(made.dtype), allow_unused=True)
        return [each for each in found if each is not None]

    eager = gradients(part, None)
    compiled = gradients(compiled_alone(part, probed.backend), None)
    try:
        exact = gradients(part, torch.float64)
    except RuntimeError:
        exact = eager
    worst = [
        _trial(node, theirs, ours, true, backward=True, alone=True)
        for theirs, ours, true in zip(compiled, eager, exact, strict=True)
    ]
    return max(worst, key=lambda each: each.compiled / max(each.eager, 1e-30), default=None)


def _operator(node: torch.fx.Node) -> str:
    if isinstance(node.target, str):
        return f"Tensor.{node.target}" if node.op == "call_method" else node.target
    name = getattr(node.target, "__name__", str(node.target))
    home = str(getattr(node.target, "__module__", "") or "")
    if "." in str(node.target) and not home:
        return str(node.target)
    homes = {"_operator": "operator", "torch._C._nn": "torch.nn.functional"}
    home = homes.get(home, home)
    if home.startswith("torch._C") or home in ("torch", ""):
        home = "torch"
    return f"{home}.{name}"


_OURS = str(Path(__file__).parent)
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def _line(node: torch.fx.Node) -> str:
    """The innermost source line that is not PyTorch's own, with the last folder of its file."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    frames = [each for each in frames if not each[0].startswith(_OURS)]
    own = [each for each in frames if "/torch/" not in each[0]] or frames
    if not own:
        return ""
    file, line = own[-1]
    return f"{'/'.join(file.split('/')[-2:])}:{line}"
