"""A watch from beginning to end, and what each step comes to."""
