"""A comparison or a checklist as a file for other programs."""
