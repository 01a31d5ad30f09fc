"""Custom autograd Functions against finite differences."""

from accucompare.watcher.custom.gradcheck import check_gradients

__all__ = ["check_gradients"]
