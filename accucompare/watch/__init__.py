"""Where reproducers that version 0.1 wrote find what they import. Scripts that are written now import ``accucompare.reproduce``."""

import sys

from accucompare import reproduce

for name in ("importing", "rebuilding", "rerun"):
    sys.modules[f"{__name__}.{name}"] = reproduce
