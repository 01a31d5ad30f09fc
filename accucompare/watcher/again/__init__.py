"""A step or a call run again, to explain a finding."""
