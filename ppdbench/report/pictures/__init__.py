"""Pictures for pages and files: numbers in, a drawing out, which is written as SVG, PNG or PDF."""
