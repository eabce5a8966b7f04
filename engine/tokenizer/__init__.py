"""The tokenizer stage: chat template, text to ids, checks of length and vocabulary."""
