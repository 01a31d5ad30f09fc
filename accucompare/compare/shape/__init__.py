"""What an error looks like: where it is, and what turned golden's values into the candidate's."""
