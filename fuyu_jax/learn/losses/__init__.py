"""Losses as pure functions of arrays, one family a file."""
