"""For test suites: an assertion that two models agree layer by layer, and a pytest plugin that
keeps bundles beside the tests."""
