package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.sources.InsertableRelation;

/** Writes rows with the Python source, in every mode of Spark. */
final class DatasetWriter {
  private static final String PARTITIONS = "__partition_columns";
  private static final String CLUSTERS = "__clustering_columns";

  private DatasetWriter() {}

  /**
   * Writes rows as the next version of a dataset.
   *
   * @throws IllegalArgumentException if an option is wrong
   */
  static void save(Dataset<Row> rows, SaveMode mode, Map<String, String> given) {
    Map<String, String> options = new HashMap<>(given);
    // Spark's catalog turns the path of a folder into a URI.
    options.computeIfPresent(
        "path", (name, path) -> path.startsWith("file:/") ? URI.create(path).getPath() : path);
    if (options.containsKey(PARTITIONS) || options.containsKey(CLUSTERS)) {
      throw new IllegalArgumentException(
          "splitarrow does not partition the rows that it writes; leave out partitionBy and"
              + " clusterBy");
    }
    if (mode == SaveMode.ErrorIfExists || mode == SaveMode.Ignore) {
      String existing = findExisting(options);
      if (existing == null) {
        append(rows, SaveMode.Append, options);
      } else if (mode == SaveMode.ErrorIfExists) {
        raise(QueryCompilationErrors.outputPathAlreadyExistsError(new Path(existing)));
      }
      return;
    }
    append(rows, mode, options);
  }

  private static void append(Dataset<Row> rows, SaveMode mode, Map<String, String> options) {
    rows.write().format(PythonSink.class.getName()).options(options).mode(mode).save();
  }

  /** Returns the location of the dataset if it has a version of another job; otherwise null. */
  private static String findExisting(Map<String, String> options) {
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", "find");
    request.set("options", Json.MAPPER.valueToTree(options));
    JsonNode answer = Planner.call(Interpreters.driver(), request);
    return answer.path("existing").asText(null);
  }

  /** Throws an exception of Spark, which Java would have to declare. */
  @SuppressWarnings("unchecked")
  private static <E extends Throwable> void raise(Throwable error) throws E {
    throw (E) error;
  }

  /** Builds the write of {@code INSERT}, or of a stream. */
  static final class Builder implements WriteBuilder, SupportsTruncate {
    private final WriteBuilder python;
    private final HashMap<String, String> options;
    private SaveMode mode = SaveMode.Append;

    Builder(WriteBuilder python, Map<String, String> options) {
      this.python = python;
      this.options = new HashMap<>(options);
    }

    @Override
    public WriteBuilder truncate() {
      ((SupportsTruncate) python).truncate();
      mode = SaveMode.Overwrite;
      return this;
    }

    @Override
    public V1Write build() {
      return new V1Write() {
        @Override
        public InsertableRelation toInsertableRelation() {
          return (rows, overwrite) -> save(rows, mode, options);
        }

        @Override
        public StreamingWrite toStreaming() {
          return python.build().toStreaming();
        }
      };
    }
  }
}
