"""A book that proves itself: executed examples, checked citations, mutations, provenance."""
