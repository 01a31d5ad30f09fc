"""Element types, sums, statistics, digests and the compiled kernel. NumPy only, never torch."""
