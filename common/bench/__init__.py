"""The benchmark: contestants that take turns, their figures, and the page that shows them."""
