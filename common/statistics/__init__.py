"""Statistics of paired differences, from numbers to a verdict; docs/statistics.md has the method. It knows no runs."""
