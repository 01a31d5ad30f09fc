"""How a model's tensors lie on its ranks."""

from accucompare.live.layouts.layouts import Layouts as Layouts
