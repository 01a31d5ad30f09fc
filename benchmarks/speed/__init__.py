"""What is timed: ``python -m benchmarks.speed.bench``."""
