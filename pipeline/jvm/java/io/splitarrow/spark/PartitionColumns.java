package io.splitarrow.spark;

import java.io.IOException;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads the shards of one partition as batches of columns. */
final class PartitionColumns implements PartitionReader<ColumnarBatch> {
  private final ReadTask task;
  private final ShardPartition partition;
  private final Connections connections;
  private final Memory memory;
  private ShardReader reader;
  private ShardReader ahead;
  private int index;
  private long left;
  private long earlierBytes;
  private long earlierMapped;
  private ColumnarBatch batch;

  PartitionColumns(ReadTask task, ShardPartition partition) {
    this.task = task;
    this.partition = partition;
    left = partition.limit();
    connections = new Connections(task.timeouts());
    memory = new Memory(task.memoryLimit());
  }

  @Override
  public boolean next() throws IOException {
    while (left != 0) {
      if (reader == null) {
        if (index == partition.shards().size()) {
          return false;
        }
        reader = ahead == null ? open(index) : ahead;
        ahead = null;
        index++;
      }
      BatchStream stream = reader.next();
      if (stream == null) {
        earlierBytes += reader.received();
        earlierMapped += reader.mapped();
        reader.close();
        reader = null;
      } else if (stream.rows > 0) {
        take(stream);
        // The server answers for the next shard while Spark processes the last rows of this one.
        if (reader.isAtEnd() && left != 0 && ahead == null && index < partition.shards().size()) {
          ahead = open(index);
          ahead.prepare();
        }
        return true;
      }
    }
    return false;
  }

  private ShardReader open(int position) {
    Shard shard = partition.shards().get(position);
    return new ShardReader(task, shard, partition.filter(), left, connections, memory);
  }

  /** Returns the shard that the current batch is a part of. */
  Shard shard() {
    return partition.shards().get(index - 1);
  }

  private void take(BatchStream stream) {
    int rows = stream.rows;
    if (left >= 0) {
      rows = (int) Math.min(rows, left);
      left -= rows;
    }
    StructField[] fields = task.schema().fields();
    ColumnVector[] columns = new ColumnVector[fields.length];
    System.arraycopy(stream.columns, 0, columns, 0, columns.length);
    batch = new ColumnarBatch(columns, rows);
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    long bytes = earlierBytes + (reader == null ? 0 : reader.received());
    long mapped = earlierMapped + (reader == null ? 0 : reader.mapped());
    return new CustomTaskMetric[] {
      new BytesReceived.InTask(bytes),
      new BytesMapped.InTask(mapped),
      new PeakMemory.InTask(memory.peak())
    };
  }

  @Override
  public void close() throws IOException {
    try {
      for (ShardReader open : new ShardReader[] {reader, ahead}) {
        if (open != null) {
          open.close();
        }
      }
      connections.close();
    } finally {
      memory.close();
    }
  }

  /** Returns a reader of rows without columns. */
  static PartitionReader<ColumnarBatch> counted(CountPartition partition) {
    return new PartitionReader<>() {
      private long left = partition.rows();
      private ColumnarBatch batch;

      @Override
      public boolean next() {
        int rows = (int) Math.min(left, 1 << 20);
        left -= rows;
        batch = new ColumnarBatch(new ColumnVector[0], rows);
        return rows > 0;
      }

      @Override
      public ColumnarBatch get() {
        return batch;
      }

      @Override
      public void close() {}
    };
  }
}
