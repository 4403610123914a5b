package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Writes the rows of {@code df.write} in every mode of Spark. */
final class DatasetWriter {
  private DatasetWriter() {}

  /**
   * Writes rows as the next version of a dataset.
   *
   * @throws IllegalArgumentException if an option is wrong
   */
  static void save(Dataset<Row> frame, SaveMode mode, Map<String, String> given) {
    Dataset<Row> rows = frame;
    Map<String, String> options = new HashMap<>(given);
    if (mode == SaveMode.ErrorIfExists || mode == SaveMode.Ignore) {
      String existing = findExisting(options);
      if (existing != null) {
        if (mode == SaveMode.ErrorIfExists) {
          raise(QueryCompilationErrors.outputPathAlreadyExistsError(new Path(existing)));
        }
        return;
      }
    }
    boolean isWhole = mode == SaveMode.Overwrite;
    if (!isWhole && new CaseInsensitiveStringMap(given).getBoolean("mergeSchema", false)) {
      JsonNode merged = ask("merge", options, rows.schema());
      if (merged.hasNonNull("schema")) {
        StructType schema = (StructType) DataType.fromJson(merged.get("schema").toString());
        rows = conform(rows, schema);
        if (merged.hasNonNull("version")) {
          String version = merged.get("version").asText();
          String path = new CaseInsensitiveStringMap(given).get("path");
          Dataset<Row> old =
              rows.sparkSession().read().format("splitarrow").option("version", version).load(path);
          rows = conform(old, schema).union(rows);
          options.put("__base", version);
          isWhole = true;
        }
      }
    }
    rows.write()
        .format(ShardSink.class.getName())
        .options(options)
        .mode(isWhole ? SaveMode.Overwrite : SaveMode.Append)
        .save();
  }

  /** Returns rows with the columns of a schema; those that they lack are null. */
  private static Dataset<Row> conform(Dataset<Row> rows, StructType schema) {
    Set<String> names = Set.of(rows.schema().fieldNames());
    return rows.select(
        Arrays.stream(schema.fields())
            .map(
                field ->
                    (names.contains(field.name())
                            ? functions.col(Catalog.quote(field.name()))
                            : functions.lit(null))
                        .cast(field.dataType())
                        .as(field.name()))
            .toArray(Column[]::new));
  }

  /** Returns the location of the dataset if it has a version of another job; otherwise null. */
  private static String findExisting(Map<String, String> options) {
    return ask("find", options, new StructType()).path("existing").asText(null);
  }

  private static JsonNode ask(String operation, Map<String, String> options, StructType schema) {
    ObjectNode request = ShardWriteBuilder.request(operation, Map.of(), schema, "append");
    request.set("options", Json.MAPPER.valueToTree(options));
    return Planner.call(Interpreters.driver(), request);
  }

  /** Throws an exception of Spark, which Java would have to declare. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void raise(Throwable error) throws E {
    throw (E) error;
  }
}
