"""Capturing and watching scripts that nobody has edited: how they are started, and what happens
inside of their processes."""
