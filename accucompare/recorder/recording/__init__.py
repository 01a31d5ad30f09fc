"""What is recorded of module calls, operators, backwards and updates."""
