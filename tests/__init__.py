"""No garbage is searched for while modules are imported, which would take a quarter of that time,
until `conftest.py` has collected the tests, and `forkserver.py` has imported.
"""

import gc

gc.disable()
