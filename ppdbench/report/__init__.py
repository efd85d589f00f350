"""Records in, text and pictures out; nothing here loads a model."""

FORMATS = ("table", "json", "csv", "markdown", "latex")
PROGRAMS = ("json", "csv")  # those that are read by programs
