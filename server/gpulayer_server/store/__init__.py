"""State that survives: SQLite, streams, blobs."""
