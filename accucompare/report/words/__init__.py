"""The words of verdicts, culprits and steps, the same in every report."""
