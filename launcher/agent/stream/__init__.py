"""The agent stream on its node: written, bounded, and never waited for."""
