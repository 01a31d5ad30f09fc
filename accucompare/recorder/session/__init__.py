"""A capture from beginning to end."""
