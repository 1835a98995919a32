"""What would happen."""
