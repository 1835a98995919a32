"""What the operator declares."""
