"""JSON in and out: request schemas, and the definition of each answer."""
