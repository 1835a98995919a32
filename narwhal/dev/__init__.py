"""A fleet on this one machine."""
