"""Publication of a trained run as a model artifact."""
