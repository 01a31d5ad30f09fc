"""The checklist: its checks, and what a log says to each."""
