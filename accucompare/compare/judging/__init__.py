"""Whether the error of a pair is within its limit."""
