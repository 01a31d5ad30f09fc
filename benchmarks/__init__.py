"""What measures the speed targets: ``python -m benchmarks.speed.bench``. Nothing here is imported
by the package.
"""
