"""Match rates: how often each layer already holds the final token."""
