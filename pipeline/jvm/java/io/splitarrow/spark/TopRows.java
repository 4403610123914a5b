package io.splitarrow.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.NullOrdering;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;

/**
 * The first rows of a sort order, of which only the first column selects shards.
 *
 * @param rows the number of rows
 */
record TopRows(String column, boolean descending, boolean nullsFirst, int rows) {

  /** Returns the first rows of a sort order; null if its first column is an expression. */
  static TopRows of(Described dataset, SortOrder[] orders, int rows) {
    String column = orders.length == 0 ? null : Aggregates.columnOf(orders[0].expression());
    if (column == null || Aggregates.comparable(dataset, column) == null) {
      return null;
    }
    return new TopRows(
        column,
        orders[0].direction() == SortDirection.DESCENDING,
        orders[0].nullOrdering() == NullOrdering.NULLS_FIRST,
        rows);
  }

  ObjectNode toJson() {
    return Json.MAPPER
        .createObjectNode()
        .put("column", column)
        .put("descending", descending)
        .put("nulls_first", nullsFirst)
        .put("rows", rows);
  }

  @Override
  public String toString() {
    return column + (descending ? " DESC" : " ASC") + " LIMIT " + rows;
  }
}
