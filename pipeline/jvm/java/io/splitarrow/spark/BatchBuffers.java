package io.splitarrow.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.FieldNode;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.memory.ArrowBuf;

/** The nodes and buffers of one record batch, in the order of the schema, decompressed. */
final class BatchBuffers {
  /** The length of an array, and the number of its rows that are null. */
  record Node(int length, int nulls) {}

  private final RecordBatch batch;
  private final ViewCounts views;
  private final Buffer[] buffers;
  private final Memory memory;
  private final List<ArrowBuf> owned;
  private int node;
  private int buffer;
  private int view;
  private long used;

  /**
   * @param views the counts of the same message
   * @param body the memory of the body, which must outlive the columns
   * @param owned receives the buffers that decompression allocates, which the caller closes
   */
  BatchBuffers(
      RecordBatch batch, ViewCounts views, Buffer body, Memory memory, List<ArrowBuf> owned)
      throws ReadFailure {
    this.batch = batch;
    this.views = views;
    this.memory = memory;
    this.owned = owned;
    int count = batch.buffersLength();
    if (count > Limits.BUFFERS || batch.nodesLength() > Limits.BUFFERS) {
      throw ReadFailure.invalid("the record batch has more than " + Limits.BUFFERS + " buffers");
    }
    List<Buffer> found = new ArrayList<>(count);
    for (int index = 0; index < count; index++) {
      org.apache.arrow.flatbuf.Buffer range = batch.buffers(index);
      long offset = range.offset();
      long length = range.length();
      if (offset < 0 || length < 0 || offset > body.length() || length > body.length() - offset) {
        throw ReadFailure.invalid("a buffer leads outside of the body of its record batch");
      }
      found.add(new Buffer(body.address() + offset, length));
    }
    buffers = found.toArray(Buffer[]::new);
  }

  Node nextNode() throws ReadFailure {
    if (node >= batch.nodesLength()) {
      throw ReadFailure.invalid("the record batch has fewer arrays than its schema");
    }
    FieldNode found = batch.nodes(node++);
    long length = found.length();
    long nulls = found.nullCount();
    if (length < 0 || length > Integer.MAX_VALUE - 8 || nulls < 0 || nulls > length) {
      throw ReadFailure.invalid("an array has " + length + " rows, of which " + nulls + " are null");
    }
    return new Node((int) length, (int) nulls);
  }

  /** Returns the next buffer, decompressed. */
  Buffer next() throws ReadFailure {
    skip(1);
    Buffer found = buffers[buffer - 1];
    used += found.length();
    return batch.compression() == null
        ? found
        : Compression.decompress(batch.compression(), found, memory, owned);
  }

  /** Passes buffers over, which stay compressed. */
  void skip(int count) throws ReadFailure {
    if (count > buffers.length - buffer) {
      throw ReadFailure.invalid("the record batch has fewer buffers than its schema");
    }
    buffer += count;
  }

  /** Returns the bytes of the buffers that were not skipped, as they were sent. */
  long used() {
    return used;
  }

  /** Returns the data buffers of an array of views. */
  Buffer[] nextVariadic() throws ReadFailure {
    Buffer[] data = new Buffer[nextVariadicCount()];
    for (int index = 0; index < data.length; index++) {
      data[index] = next();
    }
    return data;
  }

  /** Returns the number of data buffers of the next array of views. */
  int nextVariadicCount() throws ReadFailure {
    if (view >= views.length()) {
      throw ReadFailure.invalid("the record batch has fewer view arrays than its schema");
    }
    long count = views.get(view++);
    if (count < 0 || count > buffers.length - buffer) {
      throw ReadFailure.invalid("the record batch has fewer buffers than its views");
    }
    return (int) count;
  }

  /** Checks that the schema has used everything. */
  void requireEnd() throws ReadFailure {
    if (node != batch.nodesLength() || buffer != buffers.length) {
      throw ReadFailure.invalid("the record batch has more arrays than its schema");
    }
  }
}
