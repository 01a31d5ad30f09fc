"""Align two bundles, measure each pair of records, judge it, and say where they first diverge.
NumPy only, never torch.
"""
