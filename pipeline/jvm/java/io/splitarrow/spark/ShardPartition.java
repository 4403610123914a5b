package io.splitarrow.spark;

import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The shards that one task reads.
 *
 * @param limit the largest number of rows of the task; negative if there is no limit
 */
record ShardPartition(List<Shard> shards, long limit) implements InputPartition {
  private static final long serialVersionUID = 1L;

  @Override
  public String toString() {
    return "shards " + shards.stream().map(Shard::ordinal).toList();
  }
}
