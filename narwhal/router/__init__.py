"""What happens now."""
