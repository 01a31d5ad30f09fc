"""On the PYTHONPATH of captured scripts; makes the directory part of the installed package."""
