package io.splitarrow.spark;

import java.util.ArrayList;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * One row with the values of aggregates, which needs no server.
 *
 * @param values a text in Spark's internal form for each column; null for a null
 */
record AggregatePartition(ArrayList<String> values) implements InputPartition {
  private static final long serialVersionUID = 1L;
}
