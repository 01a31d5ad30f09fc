"""Two runs of training, step by step."""
