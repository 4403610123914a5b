package io.splitarrow.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;

/** Plans a write: {@code pipeline/jvm/writing.py} checks the options and the columns. */
final class ShardWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private final Map<String, String> table;
  private final LogicalWriteInfo info;
  private final boolean isWhole;
  private final ArrayNode where = Json.MAPPER.createArrayNode();
  private String mode = "append";
  private String overwritePartitions;

  /**
   * Builds the write of a frame or a statement.
   *
   * @param table the options of the table
   * @param isWhole whether truncating replaces the columns and the partitions as well
   */
  ShardWriteBuilder(Map<String, String> table, LogicalWriteInfo info, boolean isWhole) {
    this.table = new HashMap<>(table);
    this.info = info;
    this.isWhole = isWhole;
  }

  @Override
  public WriteBuilder truncate() {
    mode = isWhole ? "replace" : "overwrite";
    return this;
  }

  /** Replaces only the partitions that are written, if the session's setting is so. */
  ShardWriteBuilder followSetting() {
    overwritePartitions = SQLConf.get().partitionOverwriteMode().toString();
    return this;
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    mode = "where";
    for (Predicate predicate : predicates) {
      where.add(PredicateJson.encode(predicate));
    }
    return this;
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    mode = "dynamic";
    return this;
  }

  @Override
  public Write build() {
    ObjectNode request = request("write", table, info.schema(), mode);
    request.set("options", Json.MAPPER.valueToTree(info.options().asCaseSensitiveMap()));
    request.put("overwrite_partitions", overwritePartitions);
    request.set("where", where);
    String python = Interpreters.driver();
    return ShardWrite.of(python, info, Planner.call(python, request));
  }

  /**
   * Adds the columns that partition a table to its options.
   *
   * @throws IllegalArgumentException if it is partitioned by something else
   */
  static void setPartitions(Map<String, String> options, Transform[] partitions) {
    ArrayNode columns = Json.MAPPER.createArrayNode();
    for (Transform partition : partitions) {
      String[] column =
          partition.references().length == 1 ? partition.references()[0].fieldNames() : null;
      if (!partition.name().equals("identity") || column == null || column.length != 1) {
        throw new IllegalArgumentException(
            "splitarrow partitions by the values of columns, not by " + partition.describe());
      }
      columns.add(column[0]);
    }
    if (!columns.isEmpty()) {
      options.put("partition_by", columns.toString());
    }
  }

  /** Publishes a version without rows. */
  static void create(Map<String, String> table, StructType schema, boolean replaces) {
    Planner.call(
        Interpreters.driver(),
        request("create", table, schema, replaces ? "replace" : "append"));
  }

  /** Returns a request about rows of a schema. */
  static ObjectNode request(
      String operation, Map<String, String> table, StructType schema, String mode) {
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", operation);
    request.set("table", Json.MAPPER.valueToTree(table));
    request.putObject("options");
    request.put("mode", mode);
    try {
      request.set("schema", Json.MAPPER.readTree(schema.json()));
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
    return request;
  }
}
