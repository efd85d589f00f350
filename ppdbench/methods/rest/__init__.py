"""REST: drafts looked up in a datastore of texts."""

from ppdbench.methods.rest import strategy as strategy
