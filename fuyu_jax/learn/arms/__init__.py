"""The learning arms, one file each, to be read from top to bottom."""
