"""For test suites: an assertion that two models agree layer by layer, and a pytest plugin that keeps bundles beside the tests."""

from accucompare.testing.closeness import assert_layers_close

__all__ = ["assert_layers_close"]
