"""What a watch writes down, and how that is read. Never torch."""
