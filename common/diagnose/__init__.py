"""The command common.diagnose, which finds out why two training runs differ."""
