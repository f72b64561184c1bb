"""The HTTP side: routes, and the gateway that appends commands and awaits outcomes. No torch."""
