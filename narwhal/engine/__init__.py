"""One inference engine."""
