"""For test suites: an assertion on two models, layer by layer, and a pytest plugin."""
