"""Models that come with the package, in Hugging Face layout."""
