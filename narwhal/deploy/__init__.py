"""The gates."""
