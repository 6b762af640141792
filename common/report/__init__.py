"""Reports of a comparison: the page, Markdown, JSON, pictures, and tables on a terminal."""
