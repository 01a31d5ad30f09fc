"""Whose a gradient is."""
