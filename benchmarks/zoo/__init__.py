"""Public architectures in both frameworks, mapped, proven and trained."""
