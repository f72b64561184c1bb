"""Series and answers as tables: CSV, JSON lines and data frames."""
