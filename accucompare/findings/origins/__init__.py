"""Where a value that is not finite began."""
