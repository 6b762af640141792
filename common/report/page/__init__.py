"""The report as one page that needs nothing else: template, style, scripts and uPlot, which draws the curves."""
