package io.splitarrow.spark;

import java.util.ArrayList;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * The values of aggregates for each group, which need no server.
 *
 * @param rows for each group, a text in Spark's internal form for each column; null for a null
 */
record AggregatePartition(ArrayList<ArrayList<String>> rows) implements InputPartition {
  private static final long serialVersionUID = 1L;
}
