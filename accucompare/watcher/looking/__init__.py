"""What a watch looks at while a step runs."""
