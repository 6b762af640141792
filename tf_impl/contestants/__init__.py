"""Contestants: scripts that Lockstep is measured against, with training as users of other libraries write it.

common.bench starts each contestant, stops it while others have their turn, and reads the rows that it writes. A row has
the number of steps and of tokens so far.
"""
