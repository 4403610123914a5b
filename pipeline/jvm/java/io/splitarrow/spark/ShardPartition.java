package io.splitarrow.spark;

import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The shards that one task reads.
 *
 * @param filter the filter that the servers apply, in base64; null if there is none
 * @param limit the largest number of rows of the task; negative if there is no limit
 */
record ShardPartition(List<Shard> shards, String filter, long limit) implements InputPartition {
  private static final long serialVersionUID = 1L;

  /** Returns the hosts of the daemons that the task reads from first. */
  @Override
  public String[] preferredLocations() {
    return shards.stream()
        .flatMap(shard -> shard.replicas().stream().limit(1))
        .flatMap(replica -> replica.addresses().stream().limit(1))
        .map(Address::host)
        .distinct()
        .toArray(String[]::new);
  }

  @Override
  public String toString() {
    return "shards " + shards.stream().map(Shard::ordinal).toList();
  }
}
