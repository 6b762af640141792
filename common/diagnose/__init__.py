"""The command common.diagnose: why two training runs differ, and where the difference begins."""
