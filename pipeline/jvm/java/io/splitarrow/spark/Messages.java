package io.splitarrow.spark;

import java.io.Closeable;
import java.io.IOException;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.memory.ArrowBuf;

/** The Arrow messages of a shard, in order: its schema, dictionaries and record batches. */
interface Messages extends Closeable {
  /**
   * A message.
   *
   * @param owned the memory to pass to {@link #recycle}; null if the source keeps it
   * @param body the body; empty if the message has none
   */
  record Part(Message message, ArrowBuf owned, Buffer body) {}

  /** Returns the next message, or null at the proven end. */
  Part next() throws IOException;

  /** Takes the memory of a message back. */
  void recycle(ArrowBuf owned);

  /** Returns the bytes received over the network so far. */
  long received();

  /** Returns whether the messages contain all columns of the shard, requested or not. */
  boolean hasAllColumns();
}
