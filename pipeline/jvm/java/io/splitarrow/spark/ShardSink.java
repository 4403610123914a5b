package io.splitarrow.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@code df.write} writes to once its mode is known: rows with any columns.
 *
 * <p>Spark creates it by the name of its class.
 */
public final class ShardSink implements TableProvider {
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    throw new UnsupportedOperationException("this data source only writes");
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitions, Map<String, String> options) {
    return new Sink(schema, new HashMap<>(options));
  }

  @SuppressWarnings("deprecation") // Spark still calls schema()
  private record Sink(StructType schema, HashMap<String, String> options) implements SupportsWrite {
    @Override
    public String name() {
      return "splitarrow";
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(
          TableCapability.BATCH_WRITE,
          TableCapability.TRUNCATE,
          TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new ShardWriteBuilder(options, info, true).followSetting();
    }
  }
}
