package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.errors.QueryCompilationErrors;

/** Writes the rows of {@code df.write} in every mode of Spark. */
final class DatasetWriter {
  private DatasetWriter() {}

  /**
   * Writes rows as the next version of a dataset.
   *
   * @throws IllegalArgumentException if an option is wrong
   */
  static void save(Dataset<Row> rows, SaveMode mode, Map<String, String> options) {
    if (mode == SaveMode.ErrorIfExists || mode == SaveMode.Ignore) {
      String existing = findExisting(options);
      if (existing != null) {
        if (mode == SaveMode.ErrorIfExists) {
          raise(QueryCompilationErrors.outputPathAlreadyExistsError(new Path(existing)));
        }
        return;
      }
    }
    rows.write()
        .format(ShardSink.class.getName())
        .options(options)
        .mode(mode == SaveMode.Overwrite ? SaveMode.Overwrite : SaveMode.Append)
        .save();
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
}
