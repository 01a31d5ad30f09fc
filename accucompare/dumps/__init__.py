"""Dumps of other tools, put into a bundle: ``accucompare import``. A reader per format; only what reads a ``.pt`` imports torch."""
