"""From the facts that the stages record to spans, metrics, token log and store."""
