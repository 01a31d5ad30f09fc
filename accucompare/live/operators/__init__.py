"""Operators as they are called, their schemas, and random ones."""
