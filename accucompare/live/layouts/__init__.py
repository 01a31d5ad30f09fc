"""How a model's tensors lie on its ranks."""

from accucompare.live.layouts.layouts import Layouts

__all__ = ["Layouts"]
