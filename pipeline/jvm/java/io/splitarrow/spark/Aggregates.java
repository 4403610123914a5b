package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Aggregates over all rows of a version, whose values are known without reading them.
 *
 * @param functions the functions, for {@code explain}
 * @param schema one column for each function
 * @param values a text in Spark's internal form for each of them; null for a null
 */
record Aggregates(List<String> functions, StructType schema, ArrayList<String> values) {

  /** Returns the aggregates, or null if a value is not known, or a function is another one. */
  static Aggregates of(Described dataset, Aggregation aggregation) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    if (aggregation.groupByExpressions().length > 0 || functions.length == 0) {
      return null;
    }
    ObjectNode request = dataset.request("aggregate");
    ArrayNode encoded = request.putArray("aggregates");
    StructType schema = new StructType();
    boolean onlyRows = dataset.rows() >= 0;
    for (int index = 0; index < functions.length; index++) {
      ObjectNode function = encode(functions[index]);
      if (function == null) {
        return null;
      }
      encoded.add(function);
      onlyRows = onlyRows && functions[index] instanceof CountStar;
      DataType type = DataTypes.LongType;
      if (functions[index] instanceof Min || functions[index] instanceof Max) {
        String name = function.get("column").asText();
        if (!Arrays.asList(dataset.schema().fieldNames()).contains(name)) {
          return null;
        }
        type = dataset.schema().apply(name).dataType();
      }
      schema = schema.add("value_" + index, type);
    }
    ArrayList<String> values = new ArrayList<>();
    if (onlyRows) {
      values.addAll(Collections.nCopies(functions.length, Long.toString(dataset.rows())));
    } else {
      for (JsonNode value : Planner.call(dataset.python(), request).path("values")) {
        values.add(value.asText(null));
      }
    }
    List<String> names = Arrays.stream(functions).map(Object::toString).toList();
    return values.size() == functions.length ? new Aggregates(names, schema, values) : null;
  }

  private static ObjectNode encode(AggregateFunc function) {
    ObjectNode node = Json.MAPPER.createObjectNode();
    if (function instanceof CountStar) {
      return node.put("function", "rows");
    }
    Expression argument;
    if (function instanceof Min min) {
      node.put("function", "min");
      argument = min.column();
    } else if (function instanceof Max max) {
      node.put("function", "max");
      argument = max.column();
    } else if (function instanceof Count count && !count.isDistinct()) {
      node.put("function", "count");
      argument = count.column();
    } else {
      return null;
    }
    if (!(argument instanceof NamedReference reference) || reference.fieldNames().length != 1) {
      return null;
    }
    return node.put("column", reference.fieldNames()[0]);
  }
}
