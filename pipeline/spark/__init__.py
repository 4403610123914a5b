"""Starting Spark: Java, the session and its settings."""
