"""The stages of a diagnosis of records, each of which compares one part of the training of two scripts."""
