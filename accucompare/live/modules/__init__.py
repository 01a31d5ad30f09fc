"""Modules and their names, the hooks on them, and what they hold."""
