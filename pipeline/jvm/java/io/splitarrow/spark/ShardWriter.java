package io.splitarrow.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.WritableByteChannel;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.util.ArrowUtils;

/** The writer of one task: record batches, from which a Python process makes shards. */
final class ShardWriter implements DataWriter<InternalRow> {
  private static final long TARGET_BYTES = 4 << 20;
  private static final int MAX_ROWS = 1 << 18;
  private static final int CHUNK_BYTES = 1 << 18;

  private final Planner python;
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final ArrowWriter rows;
  private final ArrowStreamWriter stream;
  private long bytes;
  private int count;

  ShardWriter(ShardWrite.Plan plan, ObjectNode request) {
    python = Planner.acquire(plan.python());
    python.send(request);
    allocator =
        ArrowUtils.rootAllocator().newChildAllocator("splitarrow", 0, Long.MAX_VALUE);
    try (ReadChannel schema =
        new ReadChannel(Channels.newChannel(new ByteArrayInputStream(plan.schema())))) {
      root = VectorSchemaRoot.create(MessageSerializer.deserializeSchema(schema), allocator);
    } catch (IOException error) {
      throw new IllegalStateException("the planner answered with a malformed schema", error);
    }
    rows = ArrowWriter.create(root);
    stream = new ArrowStreamWriter(root, null, new Pipe(python.data()));
  }

  @Override
  public void write(InternalRow row) throws IOException {
    rows.write(row);
    count++;
    bytes += row instanceof UnsafeRow unsafe ? unsafe.getSizeInBytes() : 8L * row.numFields();
    if (bytes >= TARGET_BYTES || count >= MAX_ROWS) {
      flush();
    }
  }

  private void flush() {
    if (count > 0) {
      rows.finish();
      try {
        stream.writeBatch();
      } catch (IOException error) {
        throw python.failure();
      }
      rows.reset();
      bytes = count = 0;
    }
  }

  @Override
  public WriterCommitMessage commit() {
    flush();
    try {
      stream.end();
    } catch (IOException error) {
      throw python.failure();
    }
    return new ShardWrite.Staged(python.receive().get("shards").asText());
  }

  @Override
  public void abort() {
    // A process that has not answered ends, and with it the shard that it writes.
  }

  @Override
  public void close() {
    python.close();
    root.close();
    allocator.close();
  }

  /** Writes large pieces to a process. */
  private record Pipe(OutputStream out, byte[] chunk) implements WritableByteChannel {
    Pipe(OutputStream out) {
      this(out, new byte[CHUNK_BYTES]);
    }

    @Override
    public int write(ByteBuffer source) throws IOException {
      int written = source.remaining();
      while (source.hasRemaining()) {
        int size = Math.min(source.remaining(), chunk.length);
        source.get(chunk, 0, size);
        out.write(chunk, 0, size);
      }
      return written;
    }

    @Override
    public boolean isOpen() {
      return true;
    }

    @Override
    public void close() {
      // The process serves the next task.
    }
  }
}
