"""Contestants: scripts that Lockstep is measured against, with training as users of other libraries write it.

common.bench starts each contestant, suspends it while others have their turn, and reads the rows that it writes. A row
has the numbers of steps and tokens so far. matrix_rate.py and link_rate.py train nothing: they measure the machine.
"""
