"""Watching a live model for NaN, Inf and overflow, forward and backward: ``accucompare.watch``."""
