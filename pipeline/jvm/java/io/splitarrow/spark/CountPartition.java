package io.splitarrow.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * Rows without columns, which need no server.
 *
 * @param rows the number of rows
 */
record CountPartition(long rows) implements InputPartition {
  private static final long serialVersionUID = 1L;
}
