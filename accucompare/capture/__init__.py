"""Capturing what every layer of a live model computes: hooks, names, host copies, randomness.

``accucompare.capture`` is both this package and the function that users call: ``with accucompare.capture(model, "golden")``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from accucompare.recorder.session import capture

        return capture(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        import inspect

        from accucompare.recorder.session import capture

        return inspect.signature(capture)


sys.modules[__name__].__class__ = _CallablePackage
