"""Transforms of examples, with the same bytes on both sides and in every strategy (`data.transforms`).

A transform is a NumPy function of one example and a generator of random numbers. The generator is a pure function of
the seed, the epoch, the id of the example and the index of the transform. The replica, the micro-batch, the padding
and the step after which a run resumes have no influence.
"""
