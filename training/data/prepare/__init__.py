"""Data sets in the formats their authors publish, written as the files that sources read."""
