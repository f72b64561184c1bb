"""Commands of streams other than observations."""
