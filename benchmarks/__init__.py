"""What measures the speed targets: ``python -m benchmarks.bench``. Nothing here is imported by the package."""
