"""Faults and origins to be found: planted in models by tests and benchmarks."""
