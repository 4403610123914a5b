package io.splitarrow.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataType;

/** Predicates of Spark as JSON, for the planner, which decides what the server can evaluate. */
final class PredicateJson {
  private PredicateJson() {}

  /** Returns a predicate as JSON, or null if it contains something that no server evaluates. */
  static ObjectNode encode(Predicate predicate) {
    ObjectNode node = Json.MAPPER.createObjectNode();
    node.put("operator", predicate.name());
    ArrayNode operands = node.putArray("operands");
    for (Expression child : predicate.children()) {
      ObjectNode operand = encodeOperand(child);
      if (operand == null) {
        return null;
      }
      operands.add(operand);
    }
    return node;
  }

  private static ObjectNode encodeOperand(Expression expression) {
    if (expression instanceof Predicate predicate) {
      return encode(predicate);
    }
    ObjectNode node = Json.MAPPER.createObjectNode();
    if (expression instanceof NamedReference reference) {
      if (reference.fieldNames().length != 1) {
        return null;
      }
      return node.put("column", reference.fieldNames()[0]);
    }
    if (expression instanceof Literal<?> literal) {
      DataType type = literal.dataType();
      node.put("type", type.typeName());
      // Spark's own form: days, microseconds, digits.
      node.put("value", literal.value() == null ? null : literal.value().toString());
      return node;
    }
    return null;
  }
}
