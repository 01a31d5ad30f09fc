"""What a watch wrote, read back: one run's analysis, and that of all ranks."""
