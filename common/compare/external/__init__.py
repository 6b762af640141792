"""Runs that other programs recorded: a table of rows from a file or directory, whose columns are guessed or named."""
