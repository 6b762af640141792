"""Data of a run: from files or the Hugging Face hub to caches, the batch plan and global batches."""
