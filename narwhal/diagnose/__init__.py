"""Why, status, bundles."""
