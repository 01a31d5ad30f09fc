"""What a comparison looks like: one module per format, one verb each. No numerics, never torch."""
