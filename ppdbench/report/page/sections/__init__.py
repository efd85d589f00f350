"""What the page says: one section per file, each made from the runs that have what it shows."""
