"""Reading one data stream from its URI, blocking or asynchronous."""
