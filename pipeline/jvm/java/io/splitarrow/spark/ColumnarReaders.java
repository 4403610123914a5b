package io.splitarrow.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Creates the readers of the tasks. */
record ColumnarReaders(ReadTask task) implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    throw new UnsupportedOperationException("the partitions are read by columns");
  }

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return true;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    if (partition instanceof AggregatePartition aggregates) {
      return new AggregateRows(task.schema(), aggregates.rows());
    }
    if (partition instanceof CountPartition count) {
      return PartitionColumns.counted(count);
    }
    ShardPartition shards =
        partition instanceof KeyedPartition keyed ? keyed.shards() : (ShardPartition) partition;
    return task.metadata() == null
        ? new PartitionColumns(task, shards)
        : task.metadata().read(task, shards);
  }
}
