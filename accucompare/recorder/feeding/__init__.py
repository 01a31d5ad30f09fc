"""Golden's values in place of a module's own."""
