"""Align two bundles, measure and judge each pair of records, and trace errors. Never torch."""
