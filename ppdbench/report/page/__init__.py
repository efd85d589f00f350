"""One HTML page about stored runs: it opens from disk, fetches nothing and imports no torch.

`runs` reads what the page is about, `sections` say it, `charts` draw it, `document` puts it
into one file.
"""
