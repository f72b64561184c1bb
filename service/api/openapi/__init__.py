"""The OpenAPI document: problems and examples."""
