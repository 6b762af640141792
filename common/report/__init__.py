"""Reports of a comparison: page, Markdown, JSON, pictures and terminal tables."""
