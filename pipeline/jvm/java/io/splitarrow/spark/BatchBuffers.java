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
  private final Buffer[] buffers;
  private int node;
  private int buffer;
  private int variadic;

  /**
   * @param body the memory of the body, which must outlive the columns
   * @param owned receives the buffers that decompression allocates, which the caller closes
   */
  BatchBuffers(RecordBatch batch, Buffer body, Memory memory, List<ArrowBuf> owned)
      throws ReadFailure {
    this.batch = batch;
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
    Buffer[] raw = found.toArray(Buffer[]::new);
    buffers =
        batch.compression() == null
            ? raw
            : Compression.decompress(batch.compression(), raw, memory, owned);
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

  Buffer next() throws ReadFailure {
    if (buffer >= buffers.length) {
      throw ReadFailure.invalid("the record batch has fewer buffers than its schema");
    }
    return buffers[buffer++];
  }

  /** Returns the data buffers of an array of views. */
  Buffer[] nextVariadic() throws ReadFailure {
    if (variadic >= batch.variadicBufferCountsLength()) {
      throw ReadFailure.invalid("the record batch has fewer view arrays than its schema");
    }
    long count = batch.variadicBufferCounts(variadic++);
    if (count < 0 || count > buffers.length - buffer) {
      throw ReadFailure.invalid("the record batch has fewer buffers than its views");
    }
    Buffer[] data = new Buffer[(int) count];
    for (int index = 0; index < data.length; index++) {
      data[index] = next();
    }
    return data;
  }

  /** Checks that the schema has used everything. */
  void requireEnd() throws ReadFailure {
    if (node != batch.nodesLength() || buffer != buffers.length) {
      throw ReadFailure.invalid("the record batch has more arrays than its schema");
    }
  }
}
