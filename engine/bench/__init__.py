"""Load generator for any OpenAI-compatible server: a black box in front of which there is only a clock."""
