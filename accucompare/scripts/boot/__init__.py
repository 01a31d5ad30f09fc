"""On the PYTHONPATH of a script that is captured; makes the directory part of the installed
package."""
