"""The source of a job: ignore rules, the manifest of files by hash, packs of blobs."""
