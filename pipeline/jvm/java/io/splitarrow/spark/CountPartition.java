package io.splitarrow.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * Rows that need no server.
 *
 * @param rows the number of rows
 * @param isAggregate whether the result is one row, whose columns all contain that number
 */
record CountPartition(long rows, boolean isAggregate) implements InputPartition {
  private static final long serialVersionUID = 1L;
}
