"""A case (model, inputs, optional loss and optimizer), and how it is found and loaded."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from accucompare.errors import CaseError
from accucompare.text import with_article

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass
class Case:
    """A model and what to feed it.

    Attributes:
        model: a ``torch.nn.Module`` on the CPU; the capture moves it.
        inputs: a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of
            those, one a step. May be ``None`` if the capture starts from a saved state
            (``--like``).
        loss: called with the model's output; its result is sent backward.
        optimizer: stepped after each backward; one, or a list of them.
        scheduler: of learning rates, stepped after the optimizer; one, or a list of them.
            ``ReduceLROnPlateau`` is given the loss.
        scaler: a ``GradScaler``: it scales the loss before the backward, and steps the optimizer.
        prefill: for ``locate --decode``, with ``decode``, of a model with a cache of its own:
            ``prefill(model, *args, **kwargs)`` gives the model the first tokens and returns
            (output, cache). ``decode(model, cache, *args, **kwargs)`` gives it the next one, and
            returns the same.

    Example:
        >>> def case():
        ...     return Case(nn.Linear(4, 2).eval(), {"input": torch.ones(1, 4)})
    """

    model: Any
    inputs: Any = None
    loss: Callable[[Any], Any] | None = None
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    prefill: Callable[..., tuple[Any, Any]] | None = None
    decode: Callable[..., tuple[Any, Any]] | None = None


def load_case(target: str | None) -> tuple[Case, str]:
    """Find and build a case. Returns the case and its target, with the default filled in. Raises
    CaseError if there is no such case, or it cannot be built.

    Args:
        target: ``file.py[:callable]`` or ``package.module[:callable]``; the callable's default is
            ``case``. ``None`` stands for ``[tool.accucompare] case = "…"`` of the nearest
            pyproject.toml, and without one for ``./case.py``.
    """
    target = _default_target() if target is None else target
    source, _, name = target.partition(":")
    name = name or "case"
    if not source:
        raise CaseError(
            f"{target or repr(target)}: names no file or module; type one, as in model.py:{name}"
        )
    # Python would import it as a package without code
    if os.path.isdir(source) and not os.path.exists(f"{source}/__init__.py"):
        raise CaseError(
            f"{target}: is a directory; name the file in it, as in {source.rstrip('/')}/model.py"
        )
    module = _import(source, target)
    function = getattr(module, name, None)
    if not callable(function):
        found = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise CaseError(
            f"{target}: {source} has no callable {name!r}; it has {', '.join(found) or 'none'}"
        )
    try:
        case = function()
    except (Exception, SystemExit) as error:
        raise CaseError(f"{target}: {name}() raised {_where(error)}") from error
    if not isinstance(case, Case):
        raise CaseError(
            f"{target}: {name}() must return an accucompare.Case, but returned"
            f" {with_article(type(case).__name__)}"
        )
    return case, target


def steps_of(inputs: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """A case's inputs as positional and keyword arguments, one entry a step."""
    if isinstance(inputs, list):
        return [arguments for entry in inputs for arguments in steps_of(entry)]
    if isinstance(inputs, tuple):
        return [(inputs, {})]
    if hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):
        return [((), {str(key): inputs[key] for key in inputs.keys()})]  # noqa: SIM118 - a BatchEncoding iterates otherwise
    return [((inputs,), {})]


def whole_target(target: str | None) -> str:
    """A target with its defaults filled in: ``./net.py`` and ``net.py:case`` are one.

    Raises:
        CaseError: without a target, if pyproject.toml has one that cannot be read.
    """
    source, _, name = (_default_target() if target is None else target).partition(":")
    return f"{os.path.normpath(source)}:{name or 'case'}"


def file_of(target: str) -> Path:
    """Where a case's file is, or would be; a module's is looked for from this directory."""
    source = target.partition(":")[0]
    return Path(source) if source.endswith(".py") or "/" in source else Path(*source.split("."))


def _default_target() -> str:
    for folder in (Path.cwd(), *Path.cwd().parents):
        project = folder / "pyproject.toml"
        if project.is_file():
            try:
                target = (
                    tomllib.loads(project.read_text(encoding="utf-8"))
                    .get("tool", {})
                    .get("accucompare", {})
                    .get("case")
                )
            # AttributeError: a value stands where a table should
            except (OSError, ValueError, AttributeError) as error:
                raise CaseError(f"{project}: cannot be read ({error})") from None
            if target is not None:
                if not isinstance(target, str):
                    raise CaseError(
                        f"{project}: [tool.accucompare] case must be a string, but is {target!r}"
                    )
                source, colon, name = target.partition(":")
                return f"{folder / source}{colon}{name}" if source.endswith(".py") else target
            break
    if Path("case.py").is_file():
        return "case.py"
    raise CaseError(
        "no case given: name one (`accucompare capture model.py:case`), set [tool.accucompare]"
        " case, or write ./case.py"
    )


def _import(source: str, target: str) -> ModuleType:
    try:
        if source.endswith(".py") or "/" in source:
            return _import_file(Path(source), target)
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source)
    except CaseError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (source == error.name or source.startswith(error.name + ".")):
            raise CaseError(
                f"{target}: no module {error.name!r}; give a file as path/to/file.py"
            ) from None
        raise CaseError(f"{target}: cannot be imported: {_where(error)}") from error
    except (Exception, SystemExit) as error:
        raise CaseError(f"{target}: cannot be imported: {_where(error)}") from error


def _import_file(path: Path, target: str) -> ModuleType:
    if not os.path.isfile(path):
        raise CaseError(f"{target}: there is no file {path}")
    name = path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path.resolve()):
        name = f"{name} of {path.parent.resolve()}"  # a case may be called json.py
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise CaseError(f"{target}: {path} is no Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _where(error: BaseException) -> str:
    """An exception in one line, with the last place in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
