"""How a model computes: precision, determinism, autocast, eager mode."""
