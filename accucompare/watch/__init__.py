"""Watching a live model for NaN, Inf and overflow, forward and backward, and naming where they begin.

``accucompare.watch`` is both this package and the function that users call: ``with accucompare.watch(model, optimizer) as watch``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from accucompare.watcher.watch import watch

        return watch(*args, **kwargs)

    @property
    def __signature__(self) -> Any:
        import inspect

        from accucompare.watcher.watch import watch

        return inspect.signature(watch)


sys.modules[__name__].__class__ = _CallablePackage
