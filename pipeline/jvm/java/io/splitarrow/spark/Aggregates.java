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
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;

/**
 * Aggregates whose values are known without reading rows.
 *
 * @param functions the functions, for {@code explain}
 * @param groups the columns by which rows are grouped, for {@code explain}
 * @param schema one column for each column of a group, and for each function
 * @param rows for each group, and each column, a text in Spark's internal form; null for a null
 */
record Aggregates(
    List<String> functions,
    List<String> groups,
    StructType schema,
    ArrayList<ArrayList<String>> rows) {

  /**
   * Returns the aggregates, or null if a value is not known, or a function is another one.
   *
   * @param filter the filter that selects the rows, in base64; null if there is none
   */
  static Aggregates of(Described dataset, Aggregation aggregation, String filter) {
    AggregateFunc[] functions = aggregation.aggregateExpressions();
    ObjectNode request = dataset.request("aggregate");
    request.put("filter", filter);
    List<String> groups = new ArrayList<>();
    StructType schema = new StructType();
    for (Expression group : aggregation.groupByExpressions()) {
      String name = columnOf(group);
      DataType type = name == null ? null : comparable(dataset, name);
      if (type == null) {
        return null;
      }
      schema = schema.add("group_" + groups.size(), type);
      groups.add(name);
    }
    if (functions.length == 0 && groups.isEmpty()) {
      return null;
    }
    request.set("groups", Replica.toJson(groups));
    ArrayNode encoded = request.putArray("aggregates");
    boolean onlyRows = dataset.rows() >= 0 && filter == null && groups.isEmpty();
    for (int index = 0; index < functions.length; index++) {
      ObjectNode function = encode(functions[index]);
      if (function == null) {
        return null;
      }
      encoded.add(function);
      onlyRows = onlyRows && functions[index] instanceof CountStar;
      DataType type = DataTypes.LongType;
      if (functions[index] instanceof Min || functions[index] instanceof Max) {
        type = comparable(dataset, function.get("column").asText());
        if (type == null) {
          return null;
        }
      }
      schema = schema.add("value_" + index, type);
    }
    ArrayList<ArrayList<String>> rows = new ArrayList<>();
    if (onlyRows) {
      String count = Long.toString(dataset.rows());
      rows.add(new ArrayList<>(Collections.nCopies(functions.length, count)));
    } else {
      JsonNode answer = Planner.call(dataset.python(), request).path("rows");
      if (!answer.isArray()) {
        return null;
      }
      answer.forEach(row -> rows.add(values(row)));
    }
    List<String> names = Arrays.stream(functions).map(Object::toString).toList();
    return new Aggregates(names, List.copyOf(groups), schema, rows);
  }

  /** Returns the texts of a JSON array, in which null stays null. */
  static ArrayList<String> values(JsonNode array) {
    ArrayList<String> values = new ArrayList<>();
    array.forEach(value -> values.add(value.asText(null)));
    return values;
  }

  /** Returns the type of a column; null if its values have another order than their bytes. */
  static DataType comparable(Described dataset, String column) {
    if (!Arrays.asList(dataset.schema().fieldNames()).contains(column)) {
      return null;
    }
    DataType type = dataset.schema().apply(column).dataType();
    boolean isCollated = type instanceof StringType && !type.equals(DataTypes.StringType);
    return isCollated ? null : type;
  }

  /** Returns the column that an expression is; null if it is something else. */
  static String columnOf(Expression expression) {
    return expression instanceof NamedReference reference && reference.fieldNames().length == 1
        ? reference.fieldNames()[0]
        : null;
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
    String column = columnOf(argument);
    return column == null ? null : node.put("column", column);
  }
}
