"""A finding in words."""
