"""How often each layer already holds the final token."""
