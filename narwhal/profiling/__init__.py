"""How fast an engine is."""
