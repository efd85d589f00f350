"""Files and text on their way out: written whole, and with nothing in them that could do harm."""
