"""Webhooks: events of the feed, posted to other services, signed, at least once."""
