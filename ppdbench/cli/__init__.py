"""The command line: parse, build a configuration, call the library, render."""
