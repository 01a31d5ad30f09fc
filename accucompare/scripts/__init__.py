"""Capturing and watching unedited scripts: how they are started, and what happens inside their
processes."""
