package io.splitarrow.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.HasPartitionKey;

/**
 * Shards whose rows have the same values in some columns.
 *
 * @param partitionKey these values
 */
record KeyedPartition(ShardPartition shards, InternalRow partitionKey)
    implements HasPartitionKey {
  private static final long serialVersionUID = 1L;

  @Override
  public String[] preferredLocations() {
    return shards.preferredLocations();
  }
}
