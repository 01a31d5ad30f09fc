"""The backends of ``torch.compile``: by name, and those with which a model compiles itself."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from accucompare.errors import UsageError
from accucompare.live.modules import Modules, unwrapped

#: Stands for the backends with which the model itself compiles its parts.
OWN = "own"

#: Makes code of a graph and its inputs.
GraphCompiler = Callable[..., Any]


def backend_named(name: str) -> GraphCompiler:
    """The backend of this name. UsageError if there is none."""
    import torch._dynamo

    try:
        found: GraphCompiler = torch._dynamo.lookup_backend(name)
    except Exception as error:
        known = sorted(torch._dynamo.list_backends(exclude_tags=()))
        raise UsageError(
            f"compile (--compile) {name}: torch.compile has no such backend here"
            f" ({type(error).__name__}); it has {', '.join(known)}. A backend of a package is"
            " registered when that is imported, as a case may do"
        ) from None
    return found


def own_wrappers(modules: Modules) -> dict[int, Any]:
    """How a model itself compiles modules, by the modules' ids: ``torch.compile(module)``,
    ``module.compile()``, a compiled ``forward``."""
    found = {id(unwrapped(each)): _context_of(each) for each in modules.wrappers}
    for module in modules.named.values():
        own = getattr(module, "_compiled_call_impl", None) or getattr(module, "forward", None)
        found.setdefault(id(module), _context_of(getattr(own, "__func__", own)))
    return {key: context for key, context in found.items() if context is not None}


def backend_in(context: Any) -> GraphCompiler:
    """The backend of what ``own_wrappers`` finds."""
    found = context.callback
    for inner in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable"):  # until torch 2.7
        while hasattr(found, inner):
            found = getattr(found, inner)
    return functools.partial(found)  # torch's wrappers have no hash


def _context_of(compiled: Any) -> Any:
    """With which backend and options ``torch.compile`` made something; ``None`` if it did not."""
    from torch._dynamo.eval_frame import OptimizeContext

    held = [getattr(compiled, "dynamo_ctx", None)]
    for cell in getattr(compiled, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            held.append(cell.cell_contents)
    return next((each for each in held if isinstance(each, OptimizeContext)), None)


@contextlib.contextmanager
def registered_again() -> Iterator[None]:
    """A name may be registered again: a case's file may do so, and is imported for each run."""
    import torch._dynamo
    from torch._dynamo.backends import registry

    register = registry.register_backend

    def again(compiler_fn: Any = None, name: str | None = None, tags: Any = ()) -> Any:
        if compiler_fn is not None:
            registry._COMPILER_FNS.pop(name or compiler_fn.__name__, None)
        return register(compiler_fn, name, tags)

    with (
        mock.patch.object(registry, "register_backend", again),
        mock.patch.object(torch._dynamo, "register_backend", again),
    ):
        yield


def backwards_at_once() -> contextlib.AbstractContextManager[Any] | None:
    """Backwards are compiled with their forwards, so that one that fails is noticed there.

    ``None`` if this torch cannot do so (before 2.10).
    """
    import torch._dynamo
    from torch._functorch import config

    if not hasattr(config, "force_non_lazy_backward_lowering"):
        return None
    torch._dynamo.reset()  # forwards that were compiled without
    made: contextlib.AbstractContextManager[Any] = config.patch(
        force_non_lazy_backward_lowering=True
    )
    return made
