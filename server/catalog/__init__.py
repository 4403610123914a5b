"""Named datasets: files, directories and tables, and how each becomes a stream of messages."""
