"""Messages: turning stored data into the Arrow messages of a stream.

There are three methods, from the cheapest to the most general:

- *Passthrough* sends the messages of a file unchanged. The kernel moves large bodies from its page
  cache to the socket.
- *Projection* sends some columns of a file's messages. It writes new metadata, and sends only the
  buffers of these columns. No value is decoded.
- *Re-encoding* decodes record batches, applies the rest of the request (filter, offset, limit,
  batch size, compression) and encodes new messages.

`plan` chooses the method for a request. `message_index` finds the messages in a file.
"""
