"""The first operation that two training scripts compute differently, by the operations in their records."""
