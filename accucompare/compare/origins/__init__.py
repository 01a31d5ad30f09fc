"""Where a wrong value was made, and what its error shows."""
