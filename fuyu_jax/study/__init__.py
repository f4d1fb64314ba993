"""The study: a grid of runs that is planned in a file, run piece by piece, packed small and reported whole."""
