"""What a mail costs beside an empty workflow, measured side by side in one run: ``make bench``."""
