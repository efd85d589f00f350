"""REST: drafts looked up in a datastore of texts."""
