"""Runs in every Python process with this directory on PYTHONPATH; waits for ``import torch``.

A process without torch pays next to nothing: nothing is imported. The machine's own
``sitecustomize``, which this one hides, runs too."""

from __future__ import annotations

import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


class _WaitForTorch:
    """Finds ``torch`` as the other finders do, once, and sets up the capture after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    _run_afterwards(spec.loader)
                return spec
        return None


def _run_afterwards(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module
        execute(module)
        _install()

    loader.exec_module = exec_module


def _install() -> None:
    """Set the capture up; errors go to the command, never to the script."""
    try:
        if "accucompare" not in sys.modules:
            _import_this_package()
        from accucompare.scripts.entry import install

        install()
    # the package or a dependency is missing in this environment, or does not fit
    except Exception as error:
        _tell(f"{type(error).__name__}: {error}")


def _import_this_package() -> None:
    """Import the package that this file belongs to, wherever it lies: the command's."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "accucompare", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {_PACKAGE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["accucompare"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["accucompare"]
        raise


def _tell(error: str) -> None:
    import json

    try:
        with open(os.environ["ACCUCOMPARE_SCRIPT"]) as file:
            folder = json.load(file)["folder"]
        with open(os.path.join(folder, f"{os.getpid()}-0.json"), "w") as file:
            json.dump(
                {
                    "pid": os.getpid(),
                    "error": error,
                    "argv": list(sys.argv),
                    "python": sys.executable,
                },
                file,
            )
    except Exception:
        return


def _run_the_machines_own() -> None:
    """Run the ``sitecustomize`` that this one hides; ``site`` shows its errors, as ever."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


if os.environ.get("ACCUCOMPARE_SCRIPT"):
    sys.meta_path.insert(0, _WaitForTorch())
    # tells child processes who has started them
    _within = os.environ.get("ACCUCOMPARE_SCRIPT_WITHIN")
    os.environ["ACCUCOMPARE_SCRIPT_WITHIN"] = (
        f"{_within}:{os.getpid()}" if _within else str(os.getpid())
    )
_run_the_machines_own()
