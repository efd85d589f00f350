"""Timing, statistics and what is known of the machine."""
