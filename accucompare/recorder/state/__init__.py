"""The state that a capture starts from, and what a training step starts from."""
