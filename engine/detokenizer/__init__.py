"""The detokenizer stage: ids to text increments, stop strings."""
