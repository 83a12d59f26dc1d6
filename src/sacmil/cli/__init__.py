"""The command line: one file per noun; each parses, calls one function and prints."""
