"""Measures speed and accuracy. The package imports nothing from here."""
