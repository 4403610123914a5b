package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A version of a dataset, as the control plane describes it.
 *
 * @param options the options of the data source, which may contain a token
 * @param python the interpreter that plans
 * @param problem why only the Python source can read the dataset; null if this reader can
 * @param schema the columns with the types that Spark gives them; null if there is a problem
 * @param version the version; empty if the server reports none
 * @param rows the number of rows, at most the option {@code limit}; negative if unknown
 * @param bytes the size of all rows at the server; negative if unknown
 * @param pushdown whether filters and limits may be pushed
 * @param partitionBy the columns that have one value in each shard
 */
record Described(
    HashMap<String, String> options,
    String python,
    String dataset,
    String problem,
    StructType schema,
    String version,
    long rows,
    long bytes,
    boolean pushdown,
    Timeouts timeouts,
    long memoryLimit,
    List<String> partitionBy) {

  /** Describes the dataset that the options name. */
  static Described of(CaseInsensitiveStringMap options) {
    HashMap<String, String> values = new HashMap<>(options.asCaseSensitiveMap());
    String python = Interpreters.driver();
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", "describe");
    request.set("options", Json.MAPPER.valueToTree(values));
    JsonNode answer = Planner.call(python, request);
    String problem = answer.path("problem").asText(null);
    return new Described(
        values,
        python,
        answer.path("dataset").asText(),
        problem,
        problem == null ? schema(answer) : null,
        answer.path("version").asText(""),
        answer.path("rows").asLong(-1),
        answer.path("bytes").asLong(-1),
        answer.path("pushdown").asBoolean(false),
        new Timeouts(
            answer.path("connect_millis").asInt(10_000),
            answer.path("stall_millis").asLong(30_000)),
        answer.path("memory_limit").asLong(),
        texts(answer.path("partition_by")));
  }

  private static List<String> texts(JsonNode array) {
    List<String> texts = new ArrayList<>();
    array.forEach(text -> texts.add(text.asText()));
    return texts;
  }

  /** Reads the columns: with the types that Spark had written, or as Arrow has them. */
  private static StructType schema(JsonNode answer) {
    try {
      return (StructType) DataType.fromJson(answer.get("schema").toString());
    } catch (Exception error) { // an unknown collation: Scala checks no exceptions
      return (StructType) DataType.fromJson(answer.path("stored_schema").toString());
    }
  }

  boolean isReadable() {
    return problem == null;
  }

  /** Returns a request about this version. */
  ObjectNode request(String operation) {
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", operation);
    request.set("options", Json.MAPPER.valueToTree(options));
    request.put("version", version);
    return request;
  }

  @Override
  public String toString() {
    return dataset; // the options may contain a token
  }
}
