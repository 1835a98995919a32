"""What did happen."""
