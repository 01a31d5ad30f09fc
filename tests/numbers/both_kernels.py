"""Every test of a module that imports ``both_kernels`` runs twice: with the compiled kernel, and
with NumPy in its place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accucompare.numbers import kernel


@pytest.fixture(scope="module", autouse=True, params=["compiled", "numpy"])
def both_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(kernel, "_kernel", None)
        else:
            assert kernel._kernel is not None, (
                f"the compiled kernel is missing: {kernel.description()}"
            )
        yield
