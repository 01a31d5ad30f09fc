"""The events of a watch's log, written line by line."""
