"""Capturing and watching unedited scripts: starting them, and working inside their processes."""
