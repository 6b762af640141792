"""Named arrays, and plain text for language models: sources and their caches."""
