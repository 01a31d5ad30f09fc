"""The pages: one HTML file that needs nothing else."""
