package io.splitarrow.spark;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table of the catalog that a statement creates or replaces.
 *
 * <p>The daemons publish its rows as one version, when all of them are staged.
 */
@SuppressWarnings("deprecation") // Spark still calls schema()
final class StagedDataset implements StagedTable, SupportsWrite {
  private final String name;
  private final StructType schema;
  private final Transform[] partitions;
  private final Map<String, String> options;
  private final boolean replaces;
  private boolean isWritten;

  private StagedDataset(
      String name,
      StructType schema,
      Transform[] partitions,
      Map<String, String> options,
      boolean replaces) {
    this.name = name;
    this.schema = schema;
    this.partitions = partitions;
    this.options = options;
    this.replaces = replaces;
  }

  static StagedDataset of(
      String name,
      StructType schema,
      Transform[] partitions,
      Map<String, String> options,
      boolean replaces) {
    ShardWriteBuilder.setPartitions(options, partitions);
    return new StagedDataset(name, schema, partitions, options, replaces);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Transform[] partitioning() {
    return Arrays.copyOf(partitions, partitions.length);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    isWritten = true;
    ShardWriteBuilder builder = new ShardWriteBuilder(options, info, true);
    return replaces ? builder.truncate() : builder;
  }

  @Override
  public void commitStagedChanges() {
    if (!isWritten) {
      ShardWriteBuilder.create(options, schema, replaces);
    }
  }

  @Override
  public void abortStagedChanges() {
    // The write removes what it has staged.
  }
}
