"""What an error looks like: where it is, and what turned golden's values into the candidate's."""

from accucompare.compare.shape.patterns import describe_error

__all__ = ["describe_error"]
