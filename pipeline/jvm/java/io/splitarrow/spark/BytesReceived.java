package io.splitarrow.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The metric of a scan that Spark shows in its user interface. */
public final class BytesReceived extends CustomSumMetric {
  static final String NAME = "bytesReceived";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "bytes received from the daemons";
  }

  /** The value of one task. */
  record InTask(long value) implements CustomTaskMetric {
    @Override
    public String name() {
      return NAME;
    }
  }
}
