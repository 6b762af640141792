"""Code that both sides share. It imports neither torch nor tensorflow."""
