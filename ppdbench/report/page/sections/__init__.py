"""The sections of the page: one per file, each made from the runs that have what it shows."""
