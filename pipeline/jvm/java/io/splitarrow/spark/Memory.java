package io.splitarrow.spark;

import io.splitarrow.spark.ReadFailure.Kind;
import java.io.Closeable;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.spark.sql.util.ArrowUtils;

/** The memory of one task: every byte that a server can make it allocate outside of the heap. */
final class Memory implements Closeable {
  private final BufferAllocator allocator;
  private final long limit;

  Memory(long limit) {
    this.limit = limit;
    allocator = ArrowUtils.rootAllocator().newChildAllocator("splitarrow", 0, limit);
  }

  /** Returns a buffer that the caller closes. Refuses a size that exceeds the limit of the task. */
  ArrowBuf allocate(long bytes) throws ReadFailure {
    if (bytes < 0 || bytes > limit - allocator.getAllocatedMemory()) {
      throw exceeded(bytes);
    }
    try {
      return allocator.buffer(bytes);
    } catch (OutOfMemoryException error) {
      throw exceeded(bytes);
    }
  }

  private ReadFailure exceeded(long bytes) {
    return new ReadFailure(
        Kind.FATAL,
        "the record batch needs "
            + bytes
            + " bytes more, and the task has "
            + allocator.getAllocatedMemory()
            + " of its "
            + limit
            + " bytes in use; raise the option memory_limit, or publish smaller record batches");
  }

  long allocated() {
    return allocator.getAllocatedMemory();
  }

  long peak() {
    return allocator.getPeakMemoryAllocation();
  }

  @Override
  public void close() {
    allocator.close();
  }
}
