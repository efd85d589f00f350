"""This tool's speed beside transformers, other engines and the memory, each against its goal."""
