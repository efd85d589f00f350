"""What the page draws: one kind of picture per file, numbers in, a drawing out."""
