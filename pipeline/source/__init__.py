"""The data source: planning a read on the driver, and reading in the tasks."""
