"""What the checklist is judged by, collected step by step."""
