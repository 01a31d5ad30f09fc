"""What a diff finds, as data: rows, verdicts, and the tasks they come from."""
