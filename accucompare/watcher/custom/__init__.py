"""Custom autograd Functions against finite differences."""

from accucompare.watcher.custom.gradcheck import check_gradients as check_gradients
